/** State value: an environment's state in the form that it names; nothing of it runs. */
import { jsonText } from "../../lib/exact_json.js";
import { html } from "../../lib/html.js";
import { InlineImage } from "../parts/inline_image.js";
import { JsonTree } from "../parts/json_tree.js";
import { LongText } from "../parts/long_text.js";
import { coloured } from "../parts/shown_text.js";
import { formOf, rowsOf } from "./state_model.js";

/** @param {{value: unknown, run: string}} props */
export function StateValue({ value, run }) {
  const form = formOf(value);
  if (form === "text") return html`<${LongText} text=${String(value.text)} mono limit=${20_000} />`;
  if (form === "image") return html`<${InlineImage} base64=${String(value.base64)} />`;
  const table = form === "json" ? null : rowsOf(value);
  if (table === null) return html`<${JsonTree} value=${value} open=${3} run=${run} />`;
  return html`<${Cells} table=${table} grid=${form === "grid"} />`;
}

const LONGEST_CELL = 500; // characters

function Cells({ table, grid }) {
  const cell = (value) => {
    const text = value !== null && typeof value === "object" ? jsonText(value) : String(value ?? "");
    return coloured(text.length > LONGEST_CELL ? `${text.slice(0, LONGEST_CELL)}…` : text);
  };
  return html`<div class="scroll-x" tabindex="0" role="group" aria-label=${grid ? "Grid" : "Table"}>
    <table class=${grid ? "grid" : ""}>
      ${
        table.columns.length > 0 &&
        html`<thead>
          <tr>
            ${table.columns.map((name) => html`<th scope="col">${cell(name)}</th>`)}
          </tr>
        </thead>`
      }
      <tbody>
        ${table.rows.map(
          (row) =>
            html`<tr>
              ${row.map((one) => html`<td>${cell(one)}</td>`)}
            </tr>`,
        )}
      </tbody>
    </table>
    ${table.more > 0 && html`<p class="muted">and ${table.more} more rows, which the run's blob has</p>`}
    ${table.cut && html`<p class="muted">long rows are cut; the run's blob has them whole</p>`}
  </div>`;
}
