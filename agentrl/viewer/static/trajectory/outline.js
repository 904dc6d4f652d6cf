/** Outline: the turns of the episode, each with its agent, calls, errors, reward and version. */
import { html } from "../lib/html.js";
import { useEffect, useRef } from "../vendor/hooks.js";
import { count, number } from "../lib/format.js";
import { shortName } from "./tokens/display.js";
import { isBranch, problemsOf, rewardOf, toolsOf } from "./data.js";

/**
 * @param {{turns: object[], current: number | null, notes: object[], onTurn: (index: number) => void}}
 *   props
 */
export function Outline({ turns, current, notes, onTurn }) {
  const list = useRef(null);
  useEffect(() => {
    list.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }, [current]);
  const several = new Set(turns.map((turn) => turn.agent)).size > 1;
  return html`<nav class="outline" aria-label="Turns" ref=${list} tabindex="0">
    <ol>
      ${turns.map(
        (turn) =>
          html`<li key=${turn.index}>
            <button
              type="button"
              aria-current=${turn.index === current ? "step" : null}
              onClick=${() => onTurn(turn.index)}
            >
              <${TurnLine} turn=${turn} several=${several} notes=${notes} />
            </button>
          </li>`,
      )}
    </ol>
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
