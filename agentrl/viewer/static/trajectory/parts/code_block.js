/** Code block: code or output with its language, and a button that copies it. */
import { html } from "../../lib/html.js";
import { useState } from "../../vendor/hooks.js";
import { languageOf } from "./highlight.js";
import { LongText } from "./long_text.js";

/** @param {{text: string, lang?: string, label?: string}} props */
export function CodeBlock({ text, lang = "", label = "" }) {
  return html`<div class="code">
    <div class="code-bar"><span>${label || lang || "code"}</span><${CopyButton} text=${text} /></div>
    <${LongText} text=${text} mono limit=${6000} lang=${languageOf(lang)} />
  </div>`;
}

/** Copies `text`, or what `make` returns, and says so. */
export function CopyButton({ text, make, title = "copy" }) {
  const [state, setState] = useState(title);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(make ? make() : text);
      setState("copied");
    } catch (error) {
      setState(`not copied: ${error.message}`);
    }
  };
  return html`<button type="button" class="quiet" aria-live="polite" onClick=${copy}>${state}</button>`;
}
