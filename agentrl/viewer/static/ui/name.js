/** Name: foreign text in a line of ours. It is isolated, so that its direction ends with it. */
import { html } from "../lib/html.js";
import { line, visible, clip } from "../lib/format.js";

/** A foreign name or short text on one line; the whole is in its tooltip, cut at 2,000 characters. */
export function Name({ text, limit = 160 }) {
  const short = line(text, limit);
  return html`<bdi title=${short.endsWith("…") ? clip(visible(text), 2000) : undefined}>${short}</bdi>`;
}

/** A longer foreign text, its line breaks kept, cut visibly. */
export function Passage({ text, limit = 4000 }) {
  return html`<pre><bdi>${visible(clip(text, limit))}</bdi></pre>`;
}
