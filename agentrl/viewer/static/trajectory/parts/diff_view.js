/** Diff view: two texts line by line; far from a change, equal lines are folded. */
import { html } from "../../lib/html.js";
import { useMemo, useState } from "../../vendor/hooks.js";
import { showUnseen } from "../../lib/unseen.js";
import { More } from "./long_text.js";
import { diffLines } from "./text_diff.js";

const CONTEXT = 3;
const MOST_LINES = 600;
const MOST_LENGTH = 400_000; // characters of a text that is compared
const LINE = 2_000;

const SIGNS = { same: " ", gone: "−", new: "+" };
const WORDS = { gone: "removed: ", new: "added: " };

/** @param {{before: string, after: string, label: string}} props */
export function DiffView({ before, after, label }) {
  const [most, setMost] = useState(MOST_LINES);
  const long = before.length + after.length > MOST_LENGTH;
  const lines = useMemo(
    () => folded(diffLines(before.slice(0, MOST_LENGTH / 2), after.slice(0, MOST_LENGTH / 2))),
    [before, after],
  );
  if (before === after) return html`<p class="muted">no difference</p>`;
  return html`<div class="diff" role="group" tabindex="0" aria-label=${label}>
    ${long && html`<p class="warn">only the first ${MOST_LENGTH / 2} characters of each are compared</p>`}
    ${lines
      .slice(0, most)
      .map((line, index) =>
        line.kind === "fold"
          ? html`<div key=${index} class="diff-fold">${line.count} equal lines</div>`
          : html`<div key=${index} class="diff-line diff-${line.kind}">
              <span class="diff-sign" aria-label=${WORDS[line.kind]}>${SIGNS[line.kind]}</span
              ><span>${showUnseen(line.text.slice(0, LINE))}${line.text.length > LINE ? " …" : ""}</span>
            </div>`,
      )}
    <${More} shown=${most} total=${lines.length} onMore=${() => setMost(most * 10)} unit="lines" />
  </div>`;
}

/**
 * @param {{kind: string, text: string}[]} lines
 * @returns {({kind: string, text: string} | {kind: "fold", count: number})[]}
 */
export function folded(lines) {
  const near = new Uint8Array(lines.length);
  lines.forEach((line, index) => {
    if (line.kind === "same") return;
    near.fill(1, Math.max(0, index - CONTEXT), index + CONTEXT + 1);
  });
  const shown = [];
  let index = 0;
  while (index < lines.length) {
    let end = index;
    while (end < lines.length && !near[end]) end++;
    if (end - index > 1) shown.push({ kind: "fold", count: end - index });
    else if (end > index) shown.push(lines[index]);
    if (end < lines.length) shown.push(lines[end]);
    index = end + 1;
  }
  return shown;
}
