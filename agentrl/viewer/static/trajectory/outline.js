/** Outline: the turns of the episode, each with its agent, calls, errors, reward and version. */
import { html } from "../lib/html.js";
import { useMemo, useRef } from "../vendor/hooks.js";
import { count, number } from "../lib/format.js";
import { VirtualList } from "../ui/virtual_list.js";
import { shortName } from "./tokens/display.js";
import { isBranch, problemsOf, rewardOf, toolsOf } from "./data.js";

/**
 * @param {{turns: object[], current: number | null, notes: object[], onTurn: (index: number) => void}}
 *   props
 */
export function Outline({ turns, current, notes, onTurn }) {
  const box = useRef(null);
  const several = useMemo(() => new Set(turns.map((turn) => turn.agent)).size > 1, [turns]);
  const entry = (place) => {
    const turn = turns[place];
    return html`<li key=${turn.index} aria-setsize=${turns.length} aria-posinset=${place + 1}>
      <button
        type="button"
        aria-current=${turn.index === current ? "step" : null}
        onClick=${() => onTurn(turn.index)}
      >
        <${TurnLine} turn=${turn} several=${several} notes=${notes} />
      </button>
    </li>`;
  };
  const heightOf = (place) => 46.25 + 16.6 * problemsOf(turns[place]).length;
  const goal = useMemo(() => turns.findIndex((turn) => turn.index === current), [turns, current]);
  return html`<nav class="outline" aria-label="Turns" ref=${box} tabindex="0">
    <${VirtualList} box=${box} tag="ol" count=${turns.length} estimate=${heightOf} entry=${entry} goal=${goal} block="nearest" />
  </nav>`;
}

function TurnLine({ turn, several, notes }) {
  const problems = problemsOf(turn);
  const tools = toolsOf(turn);
  const reward = rewardOf(turn);
  const noted = notes.filter((note) => note.turn === turn.index).length;
  const branch = isBranch(turn);
  return html`<span class="turn-no">${turn.index}</span>
    <span class="turn-what">
      <span class="turn-line">
        ${several && html`<b class="agent">${shortName(turn.agent)}</b>`}
        ${tools.length ? tools.map((tool) => html`<span class="tool">${shortName(tool)}</span>`) : html`<span class="muted">answer</span>`}
      </span>
      <span class="turn-line small">
        <span class="muted">${tokensText(turn)}</span>
        ${versions(turn)} ${branch && html`<span class="muted">after ${turn.parent}</span>`}
        ${reward === reward && html`<span class=${reward > 0 ? "good" : "bad"}>${number(reward)}</span>`}
        ${noted > 0 && html`<span class="accent">${noted} note${noted > 1 ? "s" : ""}</span>`}
      </span>
      ${problems.map((problem) => html`<span class="turn-line small bad">${shortName(problem)}</span>`)}
    </span>`;
}

function tokensText(turn) {
  const tokens = turn.num_tokens;
  if (tokens === undefined || tokens === null) return "";
  const total = typeof tokens === "number" ? tokens : Object.values(tokens).reduce((a, b) => a + b, 0);
  return `${count(total)} tokens`;
}

function versions(turn) {
  const made = turn.versions ?? [];
  if (!made.length) return null;
  return html`<span class=${made.length > 1 ? "warn" : "muted"}>v${made.join(", v")}</span>`;
}
