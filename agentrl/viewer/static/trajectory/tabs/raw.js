/** Raw: the trajectory as JSON, as the store holds it. */
import { jsonText } from "../../lib/exact_json.js";
import { html } from "../../lib/html.js";
import { CopyButton } from "../parts/code_block.js";
import { JsonTree } from "../parts/json_tree.js";

/** @param {{run: string, answer: object}} props */
export function RawTab({ run, answer }) {
  return html`<div class="raw pad" tabindex="0" role="group" aria-label="Raw">
    <p>
      <${CopyButton} title="copy JSON" make=${() => jsonText(answer, 2)} />
      <${CopyButton} title="copy id" text=${answer.summary.id} />
    </p>
    <${JsonTree} value=${answer} open=${1} run=${run} />
  </div>`;
}
