/**
 * Shown text: foreign text with a terminal's colours or a code's, or exactly as it is where the reader wants it so.
 *
 * A code's colours are ranges over its one text node, so that they cost no elements.
 */
import { html } from "../../lib/html.js";
import { route } from "../../lib/router.js";
import { showUnseen } from "../../lib/unseen.js";
import { useLayoutEffect, useRef } from "../../vendor/hooks.js";
import { ansi, hasAnsi } from "./ansi.js";
import { highlight } from "./highlight.js";

/** Whether the address asks for texts as they are: no Markdown, no colours, no mathematics. */
export const isRaw = () => route.value.params.raw === "1";

/** A text with a terminal's colours, as nodes. */
export function coloured(text) {
  if (isRaw() || !hasAnsi(text)) return showUnseen(text);
  return ansi(text).map(({ text: part, look }) => (look ? html`<span class=${look}>${showUnseen(part)}</span>` : showUnseen(part)));
}

/** @param {{text: string, lang?: string}} props `lang` as `languageOf` gives it */
export function ShownText({ text, lang = "" }) {
  const place = useRef(null);
  const shown = coloured(text);
  const code = typeof shown === "string" && lang && !isRaw() ? shown : "";
  useLayoutEffect(() => (code ? paint(place.current.firstChild, highlight(code, lang)) : undefined), [code, lang]);
  return html`<div class="long-text" ref=${place}>${shown}</div>`;
}

/** Colours ranges of a text node; what is returned takes them off. */
function paint(node, parts) {
  if (!globalThis.CSS?.highlights) return undefined;
  const painted = parts.map(([start, end, kind]) => {
    const range = new StaticRange({ startContainer: node, startOffset: start, endContainer: node, endOffset: end });
    highlightOf(kind).add(range);
    return [kind, range];
  });
  return () => painted.forEach(([kind, range]) => highlightOf(kind).delete(range));
}

function highlightOf(kind) {
  const name = `code-${kind}`;
  if (!CSS.highlights.has(name)) CSS.highlights.set(name, new Highlight());
  return CSS.highlights.get(name);
}
