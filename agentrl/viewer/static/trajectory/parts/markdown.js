/**
 * Markdown: foreign Markdown as nodes. Links open apart and tell nothing; images never load. A text with a terminal's
 * colours is shown as a terminal does.
 */
import { html } from "../../lib/html.js";
import { h } from "../../vendor/preact.js";
import { useMemo } from "../../vendor/hooks.js";
import { showUnseen } from "../../lib/unseen.js";
import { hasAnsi } from "./ansi.js";
import { CodeBlock } from "./code_block.js";
import { LongText } from "./long_text.js";
import { markdownTree } from "./markdown_tree.js";
import { isRaw } from "./shown_text.js";

/** @param {{text: string}} props */
export function Markdown({ text }) {
  const isTerminal = hasAnsi(text);
  const isPlain = isRaw() || isTerminal;
  const tree = useMemo(() => (isPlain ? null : markdownTree(text)), [text, isPlain]);
  if (tree === null) return html`<${LongText} text=${text} mono=${isTerminal} />`;
  return html`<div class="md">${tree.map(view)}</div>`;
}

const views = (nodes) => nodes.map(view);

function view(node) {
  return VIEWS[node.type](node);
}

function mathematics([tag, attributes, ...children], more = {}) {
  const inner = children.map((child) => (typeof child === "string" ? showUnseen(child) : mathematics(child)));
  return h(tag, { ...attributes, ...more }, ...inner);
}

const VIEWS = {
  text: (node) => showUnseen(node.text),
  span: (node) => html`<span>${views(node.children)}</span>`,
  paragraph: (node) => html`<p>${views(node.children)}</p>`,
  source: (node) => html`<p class="md-source">${showUnseen(node.text)}</p>`,
  strong: (node) => html`<strong>${views(node.children)}</strong>`,
  em: (node) => html`<em>${views(node.children)}</em>`,
  del: (node) => html`<del>${views(node.children)}</del>`,
  // a message's headings are no headings of the page
  heading: (node) => html`<p class="md-heading md-h${node.depth}">${views(node.children)}</p>`,
  blockquote: (node) => html`<blockquote>${views(node.children)}</blockquote>`,
  hr: () => html`<hr />`,
  br: () => html`<br />`,
  math: (node) => mathematics(node.tree, { title: showUnseen(node.text) }),
  code: (node) => html`<${CodeBlock} text=${node.text} lang=${node.lang} />`,
  codespan: (node) => html`<code>${showUnseen(node.text)}</code>`,
  list: (node) =>
    node.ordered
      ? html`<ol start=${node.start}>
          ${views(node.children)}
        </ol>`
      : html`<ul>
          ${views(node.children)}
        </ul>`,
  list_item: (node) =>
    html`<li>${node.checked === null ? "" : node.checked ? "☑ " : "☐ "}${views(node.children)}</li>`,
  link: (node) =>
    node.safe
      ? html`<a href=${node.safe} title=${node.safe} target="_blank" rel="noopener noreferrer nofollow"
          >${views(node.children)}</a
        >`
      : html`<span class="md-link">${views(node.children)} <code>${showUnseen(node.address)}</code></span>`,
  image: (node) =>
    html`<span class="md-image"
      >image not loaded: ${showUnseen(node.text || "")} <code>${showUnseen(node.address)}</code></span
    >`,
  table: (node) =>
    html`<div class="scroll-x" tabindex="0" role="group" aria-label="Table">
      <table>
        <thead>
          <tr>
            ${node.header.map((cell) => html`<th scope="col">${views(cell)}</th>`)}
          </tr>
        </thead>
        <tbody>
          ${node.rows.map(
            (row) =>
              html`<tr>
                ${row.map((cell) => html`<td>${views(cell)}</td>`)}
              </tr>`,
          )}
        </tbody>
      </table>
    </div>`,
};
