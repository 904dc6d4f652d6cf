/** Stage choice: which stage of a run a page speaks of. Each stage counts its steps from 1, so no page joins two. */
import { html } from "../lib/html.js";
import { line } from "../lib/format.js";
import { update } from "../lib/router.js";

/**
 * The wanted one of some stages; the newest where it is not among them.
 * @param {{stage: string|null}[]} stages as they began
 * @param {string|undefined} wanted the address's `stage`
 */
export function stageOf(stages, wanted) {
  return stages.find(({ stage }) => stage === wanted) ?? stages.at(-1);
}

/**
 * A field that chooses, in the address; nothing where there is one stage.
 * @param {{names: string[], chosen: string, first?: string}} props `first`: the text of a choice of none
 */
export function StageChoice({ names, chosen, first }) {
  if (names.length + Boolean(first) < 2) return null;
  return html`<label>Stage${" "}
    <select class="field" value=${chosen ?? ""} onChange=${(event) => update({ stage: event.target.value })}>
      ${first && html`<option value="">${first}</option>`}
      ${names.map((name) => html`<option key=${name} value=${name}>${line(name || "unnamed", 40)}</option>`)}
    </select>
  </label>`;
}
