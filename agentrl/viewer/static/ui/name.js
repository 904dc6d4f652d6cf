/** Name: foreign text in a line of ours. It is isolated, so that its direction ends with it. */
import { html } from "../lib/html.js";
import { clip, line } from "../lib/format.js";
import { showUnseen } from "../lib/unseen.js";

/** A foreign name or short text on one line; the whole is in its tooltip, cut at 2,000 characters. */
export function Name({ text, limit = 160 }) {
  const short = line(text, limit);
  return html`<bdi title=${short.endsWith("…") ? clip(showUnseen(text), 2000) : undefined}>${short}</bdi>`;
}

const TAIL = 14; // characters of the end that stay
const SHORT = 16;

/**
 * A foreign name whose beginning and end are both read where it does not fit: what is cut is its
 * middle. The end is what follows the last slash, which tells evaluations' ids apart.
 */
export function EndsName({ text, limit = 200 }) {
  const whole = line(text, limit);
  if (whole.length <= SHORT) return html`<bdi>${whole}</bdi>`;
  const slash = whole.lastIndexOf("/");
  const cut = slash > 0 && whole.length - slash <= TAIL ? slash : whole.length - TAIL / 2;
  return html`<bdi class="ends" title=${clip(showUnseen(text), 2000)}
    ><span class="ends-head">${whole.slice(0, cut)}</span><span class="ends-tail">${whole.slice(cut)}</span></bdi
  >`;
}

/** A longer foreign text, its line breaks kept, cut visibly. */
export function Passage({ text, limit = 4000 }) {
  return html`<pre><bdi>${showUnseen(clip(text, limit))}</bdi></pre>`;
}
