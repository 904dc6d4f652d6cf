/** Column choice: a field that adds a column to a table, and a button in its head that takes it away. */
import { html } from "../lib/html.js";
import { line } from "../lib/format.js";

/**
 * @param {object} props
 * @param {string[]} props.known what can be added
 * @param {(name: string) => void} props.onAdd
 * @param {() => void} [props.onFocus]
 */
export function ColumnChoice({ known, onAdd, onFocus }) {
  const add = ({ target }) => {
    if (!known.includes(target.value)) return;
    onAdd(target.value);
    target.value = "";
  };
  return html`<input class="field" list="known-columns" placeholder="Add a column" aria-label="Add a column" onFocus=${onFocus} onInput=${add} />
    <datalist id="known-columns">${known.map((name) => html`<option key=${name} value=${name}></option>`)}</datalist>`;
}

/** Takes a column away. */
export function WithoutColumn({ title, onRemove }) {
  return html`<button class="plain muted without" aria-label=${`Without the column ${line(title, 60)}`} onClick=${onRemove}>×</button>`;
}
