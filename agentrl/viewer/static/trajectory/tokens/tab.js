/** Tokens tab: every token, coloured by a signal, with ways to the remarkable ones. */
import { html } from "../../lib/html.js";
import { useMemo, useRef, useState } from "../../vendor/hooks.js";
import { signal } from "../../vendor/signals.js";
import { useKeys } from "../../lib/keys.js";
import { offers } from "../../lib/router.js";
import { ask, isBranch, lanesOf, laneTitle, learnedOf, parseTokens } from "../data.js";
import { Empty, Failure, Missing, NO_TOKENS } from "../parts/notice.js";
import { useResource } from "../../lib/resource.js";
import { jumpOrder, TokenModel } from "../token_model.js";
import { TokenDetail } from "./detail.js";
import { shortName } from "./display.js";
import { TokenPane } from "./pane.js";
import { Legend, Signals } from "./signals.js";

const models = new WeakMap(); // an answer's model, for as long as the answer is kept

function modelOf(answer) {
  if (!models.has(answer)) models.set(answer, new TokenModel(answer));
  return models.get(answer);
}

/**
 * @param {object} props
 * @param {string} props.run
 * @param {object} props.answer the trajectory
 * @param {Record<string, string>} props.params `colour`, `tokens`, `sequence`, `turn` of the address
 * @param {(changes: object) => void} props.onParams changes the address
 * @param {(target: object) => void} props.onNote
 */
export function TokensTab(props) {
  const { run, answer } = props;
  const id = answer.summary.id;
  const choices = offers("learned") ? learnedOf(answer.annotations) : [];
  const { learner, step } = choices.find(({ key }) => key === props.params.learned) ?? {};
  const loaded = useResource(
    () => ask(run, "tokens", { id, learner, step }),
    [
      ...[run, id, learner, step],
      answer.annotations?.length ?? 0, // more was learned: the columns are others
    ],
  );
  if (loaded.error) return html`<${Failure} error=${loaded.error} onRetry=${loaded.reload} />`;
  if (!loaded.value) return html`<${Empty}>Reading the tokens …<//>`;
  const model = modelOf(loaded.value);
  if (model.count === 0) {
    return html`<${Empty} missing=${model.missing}>${NO_TOKENS}<//>`;
  }
  return html`<${TokenView} ...${props} model=${model} choices=${choices} key=${id} />`;
}

function TokenView({ answer, params, model, choices, onParams, onNote }) {
  const hovered = useRef(null);
  hovered.current ??= signal(null);
  const [thresholds, setThresholds] = useState(() => new Map());
  const [rank, setRank] = useState(-1);
  const selection = parseTokens(params.tokens, model.count);
  const name = model.signals.includes(params.colour) ? params.colour : "kind";
  const column = model.columns.get(name);
  const target = useTarget(params, selection);
  const lanes = useMemo(() => lanesOf(answer.turns), [answer]);

  const worst = useMemo(() => jumpOrder(worstColumn(model, column)), [model, column]);
  const jump = (step) => {
    if (!worst.length) return;
    const next = (rank + step + worst.length) % worst.length;
    setRank(next);
    onParams({ tokens: `${worst[next]}-${worst[next] + 1}`, turn: model.turn[worst[next]] });
  };
  const colour = (next) => {
    setRank(-1);
    onParams({ colour: next });
  };
  const turnSignal = (step) => {
    const names = model.signals;
    colour(names[(names.indexOf(name) + step + names.length) % names.length]);
  };
  useKeys("Tokens", [
    { key: "m", help: "colour by the next signal", run: () => turnSignal(1) },
    { key: "M", help: "colour by the signal before", run: () => turnSignal(-1) },
    { key: "w", help: "worst token, then the next worst", run: () => jump(1) },
    { key: "W", help: "back to the worse token", run: () => jump(-1) },
  ]);

  const select = (token, extend) => {
    const start = extend && selection ? Math.min(selection[0], token) : token;
    const end = extend && selection ? Math.max(selection[1], token + 1) : token + 1;
    onParams({ tokens: `${start}-${end}` });
  };
  const events = {
    hover: (token) => (hovered.current.value = token),
    pick: select,
    move: (step, extend) => {
      const from = selection ? (step > 0 ? selection[1] - 1 : selection[0]) : -1;
      const token = Math.min(model.count - 1, Math.max(0, from + step));
      hovered.current.value = null;
      select(token, extend);
    },
    head: (turn) => headOf(answer.turns[turn], turn),
  };
  const common = { model, column, selection, target, events, threshold: thresholds.get(name) ?? null };
  const split = params.sequence === "each" && lanes.length > 1;
  const only = /^\d+$/.test(params.sequence ?? "") ? Number(params.sequence) : null;
  return html`<div class="tokens">
    <div class="tok-bar">
      <label>
        colour
        <select value=${name} onChange=${(event) => colour(event.target.value)}>
          ${model.signals.map((one) => html`<option value=${one} selected=${one === name}>${one}</option>`)}
        </select>
      </label>
      <${Legend} column=${column} />
      ${
        lanes.length > 1 &&
        html`<${SequenceChoice}
          lanes=${lanes}
          value=${params.sequence ?? ""}
          onChange=${(sequence) => onParams({ sequence })}
        />`
      }
      ${
        choices.length > 1 &&
        html`<${LearnedChoice}
          choices=${choices}
          value=${params.learned ?? ""}
          onChange=${(learned) => onParams({ learned })}
        />`
      }
      <span class="spacer"></span>
      <button type="button" onClick=${() => jump(1)} disabled=${!worst.length} title="key w">
        worst token${rank >= 0 ? ` (${rank + 1} of ${worst.length})` : ""}
      </button>
      ${
        selection &&
        onNote &&
        html`<button
          type="button"
          onClick=${() => onNote({ tokens: selection, turn: model.turn[selection[0]] })}
        >
          ${noteText(selection)}
        </button>`
      }
    </div>
    <div class="tok-main">
      ${
        split
          ? lanes.map(
              (lane) =>
                html`<${TokenPane}
                  ...${common}
                  key=${lane.sequence}
                  sequence=${lane.sequence}
                  label=${`Tokens of sequence ${lane.sequence}`}
                />`,
            )
          : html`<${TokenPane} ...${common} sequence=${only} label="Tokens" />`
      }
      <div class="tok-side" role="group" aria-label="Token and signals" tabindex="0">
        <${TokenDetail} model=${model} hovered=${hovered.current} selection=${selection} />
        <${Signals}
          model=${model}
          active=${name}
          thresholds=${thresholds}
          onColour=${colour}
          onThreshold=${(one, severity) => setThresholds(changed(thresholds, one, severity))}
        />
        <${Missing} missing=${model.missing} />
      </div>
    </div>
  </div>`;
}

function noteText([start, end]) {
  return end - start === 1 ? "note on this token" : `note on ${end - start} tokens`;
}

/** A place to scroll to: the address's tokens or turn, anew whenever either changes. */
function useTarget(params, selection) {
  const target = useRef({ token: -1, turn: -1, count: 0 });
  const last = useRef({});
  const { tokens, turn } = params;
  if (tokens !== last.current.tokens || turn !== last.current.turn) {
    const byTurn = turn !== last.current.turn && tokens === last.current.tokens;
    const wanted = turn === undefined ? -1 : Number(turn);
    target.current = {
      token: selection && !byTurn ? selection[0] : -1,
      turn: wanted,
      count: target.current.count + 1,
    };
    last.current = { tokens, turn };
  }
  return target.current;
}

/** The signal whose worst tokens are looked for: the colour, or where it ranks none, a usual one. */
function worstColumn(model, column) {
  const usual = ["difference", "logprobs"].map((name) => model.columns.get(name));
  const ranks = (one) => one?.present && !one.plain;
  return [column, ...usual].find(ranks) ?? column;
}

function changed(thresholds, name, severity) {
  const next = new Map(thresholds);
  if (severity === null) next.delete(name);
  else next.set(name, severity);
  return next;
}

function headOf(turn, index) {
  const tools = (turn?.calls ?? []).map(({ call }) => call?.name).filter(Boolean);
  const branch = isBranch(turn) ? `branches after turn ${turn.parent}` : "";
  const parts = [`turn ${index}`, turn?.agent, ...tools, branch].filter(Boolean);
  return shortName(parts.join(" · "), 200);
}

function SequenceChoice({ lanes, value, onChange }) {
  return html`<label>
    sequence
    <select value=${value} onChange=${(event) => onChange(event.target.value)}>
      <option value="" selected=${value === ""}>all, by turn</option>
      <option value="each" selected=${value === "each"}>side by side</option>
      ${lanes.map(
        (lane) =>
          html`<option value=${String(lane.sequence)} selected=${value === String(lane.sequence)}>
            ${laneTitle(lane)}
          </option>`,
      )}
    </select>
  </label>`;
}

function LearnedChoice({ choices, value, onChange }) {
  return html`<label>
    learned by
    <select value=${value} onChange=${(event) => onChange(event.target.value)}>
      <option value="" selected=${value === ""}>the newest</option>
      ${choices.map(
        ({ key, label }) => html`<option value=${key} selected=${key === value}>${shortName(label)}</option>`,
      )}
    </select>
  </label>`;
}
