/** Blame: the tokens, turns and trajectories that carry a step's loss, mismatch, entropy or clipping. */
import { html } from "../lib/html.js";
import { ofRun, useApi } from "../lib/api.js";
import { clip, count, number, percent } from "../lib/format.js";
import { showEvery, showUnseen } from "../lib/unseen.js";
import { useKeys } from "../lib/keys.js";
import { go, link, update } from "../lib/router.js";
import { useCursor } from "../ui/cursor.js";
import { Name } from "../ui/name.js";
import { Empty, Loaded } from "../ui/state.js";
import { StageChoice } from "../ui/stage_choice.js";
import { StepsPage } from "../ui/steps.js";

const SIGNALS = ["loss", "mismatch", "entropy", "clipped"];
const LEVELS = ["token", "turn", "trajectory"];
const AROUND = 60; // characters of text on each side of a token
const CLOSE = 1e-6; // of the total against the logged number

/** The page; step, signal and level are in the address. */
export function BlamePage({ run, params }) {
  return html`<${StepsPage} title="Blame" hint="what carries a step's number, the largest first"
    run=${run} params=${params} least=${1} page=${Step}
    lacking=${() => "No step has ended yet that logged reward/mean; blame ranks the tokens of such a step."} />`;
}

function Step({ run, params, steps, stages, stage }) {
  const step = params.step ?? String(steps[steps.length - 1]);
  const signal = SIGNALS.includes(params.signal) ? params.signal : "loss";
  const level = LEVELS.includes(params.level) ? params.level : "token";
  const found = useApi(ofRun(run, "blame"), { step, signal, level, stage });
  const at = steps.indexOf(Number(step));
  const move = (by) => {
    const next = steps[Math.max(0, Math.min(steps.length - 1, (at < 0 ? steps.length - 1 : at) + by))];
    update({ step: next });
  };
  const cycle = (names, now) => names[(names.indexOf(now) + 1) % names.length];
  useKeys("Blame", [
    { key: "[", help: "the step before", run: () => move(-1) },
    { key: "]", help: "the next step", run: () => move(1) },
    { key: "m", help: "the next signal", run: () => update({ signal: cycle(SIGNALS, signal) }) },
    { key: "l", help: "tokens, turns or trajectories", run: () => update({ level: cycle(LEVELS, level) }) },
  ]);
  return html`
    <div class="panel controls">
      <${StageChoice} names=${stages} chosen=${stage} />
      <span>
        <button class="button" onClick=${() => move(-1)} disabled=${at === 0} aria-label="The step before">←</button>
        <label class="inline">Step
          <select class="field" value=${step} onChange=${(event) => update({ step: event.target.value })}>
            ${at < 0 && html`<option value=${step}>${step}</option>`}
            ${steps.map((one) => html`<option key=${one} value=${String(one)}>${one}</option>`)}
          </select>
        </label>
        <button class="button" onClick=${() => move(1)} disabled=${at === steps.length - 1} aria-label="The next step">→</button>
      </span>
      <${Choice} label="Signal" names=${SIGNALS} chosen=${signal} onChoice=${(name) => update({ signal: name })} />
      <${Choice} label="Level" names=${LEVELS} chosen=${level} onChoice=${(name) => update({ level: name })} />
    </div>
    <${Loaded} of=${found}>
      ${(data) =>
        // until the answer for another choice is there, what is shown is named for what it is
        html`<div aria-busy=${found.loading} class=${found.loading ? "ranking stale" : "ranking"}><${Ranking} run=${run} data=${data} /></div>`}
    <//>
  `;
}

function Choice({ label, names, chosen, onChoice }) {
  return html`
    <span class="choice" role="group" aria-label=${label}>
      <span class="muted">${label}</span>
      ${names.map(
        (name) => html`<button key=${name} class="button" aria-pressed=${name === chosen} onClick=${() => onChoice(name)}>${name}</button>`,
      )}
    </span>
  `;
}

function Ranking({ run, data }) {
  const { rows, signal, level } = data;
  const [active, setActive] = useCursor({
    scope: "Ranking",
    noun: level,
    count: rows.length,
    onOpen: (index) => go(hrefOf(run, rows[index], signal)),
  });
  const most = Math.max(...rows.map(({ value }) => Math.abs(value)), 0);
  if (data.missing) return html`<${Empty}>Not recorded: ${clip(showUnseen(data.missing), 1000)}<//>`;
  return html`
    <p role="status"><${Sum} data=${data} signal=${signal} /></p>
    ${rows.length === 0
      ? html`<${Empty}>Nothing of the step carries ${signal}: each part of it is 0.<//>`
      : html`<section class="panel scroll-x">
          <table class="rows blame">
            <thead>
              <tr><th class="num">Value</th><th><span class="sr-only">Size</span></th><th class="num">Share</th><th>${level}</th><th>Trajectory</th></tr>
            </thead>
            <tbody>
              ${rows.map(
                (row, index) => html`<tr key=${index} class=${index === active ? "active" : ""} data-active=${index === active} onClick=${() => setActive(index)}>
                  <td class="num">${number(row.value, 4)}</td>
                  <td><${Bar} value=${row.value} most=${most} /></td>
                  <td class="num">${percent(row.share)}</td>
                  <td class="words"><a href=${hrefOf(run, row, signal)}><${Words} row=${row} /></a></td>
                  <td><a href=${link("trajectory", { run, id: row.id })}><${Name} text=${row.id} limit=${50} /></a>
                    <span class="muted">${row.turn === null ? "" : ` turn ${row.turn}`}${row.token === null ? "" : `, token ${row.token}`}</span></td>
                </tr>`,
              )}
            </tbody>
          </table>
        </section>`}
  `;
}

/** Whether the parts come to the number that the step logged. */
function Sum({ data, signal }) {
  const { total, logged } = data;
  if (logged === null || logged === undefined) {
    return html`The parts of ${signal} come to <b>${number(total, 6)}</b>; the step logged no such number.`;
  }
  const close = Math.abs(total - logged) <= CLOSE * Math.max(1, Math.abs(logged));
  return html`The parts of ${signal} come to <b>${number(total, 6)}</b>, the step logged <b>${number(logged, 6)}</b>${" "}
    ${data.kept && html`(store.keep left ${count(data.kept[0])} of ${count(data.kept[1])} trajectories of the step) `}
    <span class=${`chip ${close ? "good" : "warn"}`}>${close ? "equal" : `differ by ${number(total - logged, 2)}`}</span>`;
}

function Words({ row }) {
  const text = row.text || (row.token === null ? "–" : `token ${row.token}`);
  if (row.token === null) return html`<${Name} text=${text} limit=${200} />`;
  return html`<bdi class="mono spaced"><span class="muted">${raw(row.before.slice(-AROUND))}</span><mark>${raw(clip(text, AROUND))}</mark><span class="muted">${raw(row.after.slice(0, AROUND))}</span></bdi>`;
}

/** Text with its spaces, its line breaks shown. */
function raw(text) {
  return showEvery(text.replaceAll("\n", "↵"));
}

function Bar({ value, most }) {
  const width = most > 0 ? 40 * (Math.abs(value) / most) : 0;
  return html`
    <svg class="shift" width="88" height="12" aria-hidden="true">
      <rect class=${value > 0 ? "more" : "less"} x=${value > 0 ? 44 : 44 - width} width=${width} y="2" height="8" rx="1" />
      <line x1="44" x2="44" y1="0" y2="12" />
    </svg>
  `;
}

/** The signal's column in the trajectory's token view. */
const COLUMNS = { loss: "token_loss", mismatch: "difference", entropy: "entropy", clipped: "clipped" };

function hrefOf(run, row, signal) {
  const params = { run, id: row.id, turn: row.turn ?? "" };
  if (row.token === null) return link("trajectory", params);
  return link("trajectory", { ...params, tab: "tokens", tokens: `${row.token}-${row.token}`, colour: COLUMNS[signal] });
}
