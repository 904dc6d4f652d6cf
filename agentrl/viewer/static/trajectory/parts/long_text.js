/** Long text: foreign text as text, with what is invisible shown, cut until the reader asks. */
import { html } from "../../lib/html.js";
import { useState } from "../../vendor/hooks.js";
import { ShownText } from "./shown_text.js";

const FIRST = 4_000;
const STEP = 100_000;

/**
 * Where to cut a text so that no character is halved.
 * @param {string} text
 * @param {number} limit
 * @returns {number}
 */
export function cutAt(text, limit) {
  if (text.length <= limit) return text.length;
  const code = text.charCodeAt(limit - 1);
  return code >= 0xd800 && code <= 0xdbff ? limit - 1 : limit;
}

/**
 * @param {{text: string, limit?: number, mono?: boolean, label?: string, lang?: string}} props `label` names the
 *   text for who cannot see it; `lang` is a code's
 */
export function LongText({ text, limit = FIRST, mono = false, label, lang }) {
  const whole = String(text ?? "");
  const [shown, setShown] = useState(limit);
  const end = cutAt(whole, shown);
  return html`<div class=${mono ? "long mono" : "long"} aria-label=${label} role=${label && "group"}>
    <${ShownText} text=${whole.slice(0, end)} lang=${lang} />
    <${More} shown=${end} total=${whole.length} onMore=${() => setShown(shown + STEP)} whole=${whole} />
  </div>`;
}

/** The button under what was cut; it says how much is hidden. With `whole` another gives all of it as a file. */
export function More({ shown, total, onMore, unit = "characters", whole = null }) {
  if (shown >= total) return null;
  const rest = (total - shown).toLocaleString("en-US");
  const all = total.toLocaleString("en-US");
  return html`<button type="button" class="more" onClick=${onMore}>
      show more: ${rest} of ${all} ${unit} are hidden</button
    >${
      whole !== null && html`<button type="button" class="more" onClick=${() => save(whole)}>download the whole text</button>`
    }`;
}

/** Gives the text to the browser as a file: a document of millions of characters would stand still. */
function save(text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = "text.txt";
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
