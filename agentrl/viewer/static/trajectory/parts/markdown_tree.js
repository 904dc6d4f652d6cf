/**
 * Markdown tree: Markdown as plain objects that a component turns into nodes; never HTML.
 *
 * A node is `{ type, children? , text?, ... }` with a type of TYPES. HTML in the source is text. An
 * image is its description and address; nothing is loaded. A link keeps its address only where it
 * leads to http, https or mailto. A formula is a tree of MathML (tex.js).
 */
import { Lexer } from "../../vendor/marked.js";
import { extensionsOf, tex } from "./tex.js";

/** Longest source that is parsed; a longer one is shown as plain text. */
export const MOST = 50_000;

const MOST_DEPTH = 40;
const SAFE_LINK = /^(https?:\/\/|mailto:)[^\s\u0000-\u001f]+$/i;
const BLOCKS = new Set(["blockquote", "paragraph", "heading", "list", "list_item", "table", "hr"]);
const INLINE = new Set(["strong", "em", "del"]);

/**
 * @param {string} source
 * @returns {object[] | null} null where the source is too long or too deeply nested to parse
 */
export function markdownTree(source) {
  if (source.length > MOST || nesting(source) > MOST_DEPTH) return null;
  try {
    const tokens = new Lexer({ gfm: true, breaks: true, extensions: extensionsOf(source) }).lex(source);
    return tokens.map(nodeOf).filter(Boolean);
  } catch (error) {
    if (error instanceof RangeError) return null; // nested deeper than the stack
    throw error;
  }
}

/** The deepest nesting that quotes, lists and brackets could open on one line. */
function nesting(source) {
  let deepest = 0;
  for (const line of source.split("\n")) {
    const marks = line.match(/^[\s>*+-]*/)[0].replace(/\s/g, "").length;
    const rule = /^\s*([-*_])(\s*\1){2,}\s*$/.test(line);
    const brackets = (line.match(/\[/g) || []).length;
    deepest = Math.max(deepest, rule ? 0 : marks, brackets);
  }
  return deepest;
}

function nodesOf(token) {
  return (token.tokens || []).map(nodeOf).filter(Boolean);
}

function nodeOf(token) {
  const type = token.type;
  if (type === "space" || type === "def" || type === "checkbox") return null;
  if (INLINE.has(type)) return { type, children: nodesOf(token) };
  if (BLOCKS.has(type)) return BLOCK_NODES[type](token);
  if (type === "code") return { type, text: token.text, lang: (token.lang || "").split(/\s/)[0] };
  if (type === "codespan") return { type, text: token.text };
  if (type === "br") return { type };
  if (type === "math") return mathOf(token);
  if (type === "html" && token.block) return { type: "source", text: token.raw.trimEnd() };
  if (type === "link") return linkOf(token);
  if (type === "image") return { type, text: token.text, address: token.href };
  if (type === "text" && token.tokens) return { type: "span", children: nodesOf(token) };
  return { type: "text", text: type === "escape" ? token.text : (token.raw ?? token.text ?? "") };
}

/** A formula that is not understood is its source. */
function mathOf({ raw, text, isBlock, block }) {
  const tree = tex(text, isBlock);
  if (tree) return { type: "math", tree, text: raw.trim() };
  return { type: block ? "source" : "text", text: raw.trim() };
}

const BLOCK_NODES = {
  paragraph: (token) => ({ type: "paragraph", children: nodesOf(token) }),
  blockquote: (token) => ({ type: "blockquote", children: nodesOf(token) }),
  heading: (token) => ({ type: "heading", depth: token.depth, children: nodesOf(token) }),
  hr: () => ({ type: "hr" }),
  list: (token) => ({
    type: "list",
    ordered: Boolean(token.ordered),
    start: Number(token.start) || 1,
    children: token.items.map(nodeOf),
  }),
  list_item: (token) => ({
    type: "list_item",
    checked: token.task ? Boolean(token.checked) : null,
    children: nodesOf(token),
  }),
  table: (token) => ({
    type: "table",
    header: token.header.map((cell) => nodesOf(cell)),
    rows: token.rows.map((row) => row.map((cell) => nodesOf(cell))),
  }),
};

function linkOf(token) {
  const address = String(token.href ?? "");
  const safe = SAFE_LINK.test(address) ? address : null;
  return { type: "link", address, safe, children: nodesOf(token) };
}
