/**
 * JSON tree: any JSON as lines that open and close.
 *
 * Only what is open is in the document, long lists come in parts, long strings are cut. Keys are
 * shown, never used to write to an object. The store's marks are read: `{"$float": "nan"}` is the
 * number, `{"$image": ...}` the image.
 */
import { html } from "../../lib/html.js";
import { useState } from "../../vendor/hooks.js";
import { showUnseen } from "../../lib/unseen.js";
import { shortName } from "../tokens/display.js";
import { LongText } from "./long_text.js";
import { imageOf, StoredImage } from "./stored_image.js";

const PART = 100;
const INLINE = 120;
const KEY = 300;

/**
 * @param {{value: unknown, name?: string, open?: number, run?: string}} props `open` levels are
 *   open at first
 */
export function JsonTree({ value, name, open = 1, run }) {
  return html`<div class="json"><${Entry} name=${name} value=${value} open=${open} run=${run} /></div>`;
}

function Entry({ name, value, open, run }) {
  const label = name === undefined ? null : html`<span class="json-key">${shortName(name, KEY)}</span>`;
  const mark = special(value);
  if (mark !== null) return html`<div class="json-line">${label}<span class="json-num">${mark}</span></div>`;
  const image = imageOf(value);
  if (image) return html`<div class="json-line">${label}<${StoredImage} image=${image} run=${run} /></div>`;
  if (typeof value === "string" && (value.length > INLINE || value.includes("\n"))) {
    return html`<div class="json-line">${label}<${LongText} text=${value} mono limit=${2000} /></div>`;
  }
  if (value === null || typeof value !== "object") {
    return html`<div class="json-line">${label}<${Leaf} value=${value} /></div>`;
  }
  return html`<${Branch} label=${label} value=${value} open=${open} run=${run} />`;
}

function Leaf({ value }) {
  if (typeof value === "string") {
    return html`<span class="json-str">${JSON.stringify(showUnseen(value))}</span>`;
  }
  return html`<span class=${value === null ? "json-null" : "json-num"}>${String(value)}</span>`;
}

function Branch({ label, value, open, run }) {
  const [isOpen, setOpen] = useState(open > 0);
  const [shown, setShown] = useState(PART);
  const list = Array.isArray(value);
  const keys = list ? value.length : Object.keys(value);
  const size = list ? keys : keys.length;
  const noun = list ? "item" : "key";
  const count = `${list ? "[" : "{"}${size} ${noun}${size === 1 ? "" : "s"}${list ? "]" : "}"}`;
  if (size === 0)
    return html`<div class="json-line">${label}<span class="json-null">${list ? "[]" : "{}"}</span></div>`;
  const names = () =>
    list ? Array.from({ length: Math.min(shown, size) }, (_, i) => i) : keys.slice(0, shown);
  return html`<div class="json-branch">
    <button type="button" class="json-toggle" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>
      <span class="json-arrow" aria-hidden="true">${isOpen ? "▾" : "▸"}</span>${label}
      <span class="json-count">${count}</span>
    </button>
    ${
      isOpen &&
      html`<div class="json-inner">
        ${names().map(
          (key) =>
            html`<${Entry} key=${key} name=${String(key)} value=${value[key]} open=${open - 1} run=${run} />`,
        )}
        ${
          shown < size &&
          html`<button type="button" class="more" onClick=${() => setShown(shown + 10 * PART)}>
            show more: ${size - shown} ${noun}s are hidden
          </button>`
        }
      </div>`
    }
  </div>`;
}

/** The number that a mark of the store stands for, or null. */
function special(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return null;
  const keys = Object.keys(value);
  if (keys.length !== 1 || typeof value[keys[0]] !== "string") return null;
  if (keys[0] === "$float") return { nan: "NaN", inf: "∞", "-inf": "−∞" }[value.$float] ?? null;
  return keys[0] === "$repr" ? showUnseen(value.$repr) : null;
}
