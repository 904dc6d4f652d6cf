/** Token detail: everything that is known of one token. */
import { html } from "../../lib/html.js";
import { number, percent } from "../../lib/format.js";
import { KINDS } from "../token_model.js";
import { bytesOf, shownPiece } from "./display.js";

/**
 * @param {object} props
 * @param {import("../token_model.js").TokenModel} props.model
 * @param {import("../../vendor/signals.js").Signal<number | null>} props.hovered
 * @param {[number, number] | null} props.selection shown while nothing is hovered
 */
export function TokenDetail({ model, hovered, selection }) {
  const token = hovered.value ?? selection?.[0] ?? null;
  if (token === null || token >= model.count) {
    return html`<p class="muted">Point at a token, or move with the arrow keys.</p>`;
  }
  const hex = model.bytes.get(token);
  const piece = model.pieces[token];
  return html`<div class="tok-detail" aria-live="polite">
    <div class="tok-piece"><span>${shownPiece(piece, hex)}</span></div>
    <dl>
      <${Fact} name="token" value=${token} />
      <${Fact} name="id" value=${model.ids[token]} />
      <${Fact} name="bytes" value=${bytesOf(piece, hex)} />
      <${Fact} name="kind" value=${KINDS[model.kinds[token]]} />
      <${Fact} name="turn, sequence" value=${`${model.turn[token]}, ${model.sequence[token]}`} />
      ${[...model.columns.values()]
        .filter((column) => column.name !== "kind" && column.present)
        .map((column) => html`<${Value} column=${column} token=${token} />`)}
    </dl>
    <${Alternatives} alternatives=${model.alternatives?.at(token) ?? []} sampled=${model.ids[token]} />
  </div>`;
}

function Fact({ name, value }) {
  return html`<div>
    <dt>${name}</dt>
    <dd>${value}</dd>
  </div>`;
}

function Value({ column, token }) {
  const text = column.text(token);
  const likely =
    column.name.includes("logprobs") && text ? ` (${percent(Math.exp(column.values[token]))})` : "";
  return html`<div title=${column.help}>
    <dt>${column.name}</dt>
    <dd>${text ? `${text}${likely}` : "–"} <span class="muted">${text && column.unit}</span></dd>
  </div>`;
}

/** The engine's likeliest tokens; the sampled one among them is marked. */
function Alternatives({ alternatives, sampled }) {
  if (!alternatives.length) return null;
  return html`<table class="alternatives">
    <caption>
      alternatives
    </caption>
    <thead>
      <tr>
        <th scope="col">text</th>
        <th scope="col">id</th>
        <th scope="col">logprob</th>
        <th scope="col">share</th>
      </tr>
    </thead>
    <tbody>
      ${alternatives.map(
        ({ piece, hex, id, logprob }) =>
          html`<tr>
            <td><span class="tok-piece"><span>${shownPiece(piece, hex)}</span></span></td>
            <td>${id}${id === sampled && html` <span class="muted">sampled</span>`}</td>
            <td>${number(logprob)}</td>
            <td>${percent(Math.exp(logprob))}</td>
          </tr>`,
      )}
    </tbody>
  </table>`;
}
