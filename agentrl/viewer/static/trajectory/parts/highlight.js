/** Highlight: where a code's comments, strings, numbers and keywords are, for some languages. Pure. */

/** Longest beginning of a code that is looked through. */
export const MOST = 20_000;

const KINDS = ["comment", "string", "number", "keyword"];
const NUMBER = String.raw`\b(?:0[xX][\da-fA-F_]+|0[bB][01_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\b`;
const WORD = String.raw`[\p{L}_$][\p{L}\p{M}\p{N}_$]*`;
const SHORT = String.raw`"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?`; // strings that end with their line at the latest

const LANGUAGES = new Map([
  ["python", language(
    "#.*",
    String.raw`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|${SHORT}`,
    "False None True and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return try while with yield",
  )],
  ["bash", language(
    String.raw`(?<!\S)#.*`,
    String.raw`"(?:[^"\\]|\\[^])*"?|'[^']*'?`,
    "case cd do done echo elif else esac exit export fi for function if in local return select set then until while",
  )],
  ["js", language(
    String.raw`\/\/.*|\/\*[^]*?(?:\*\/|$)`,
    SHORT + String.raw`|${"`"}(?:[^${"`"}\\]|\\[^])*${"`"}?`,
    "as async await break case catch class const continue default delete do else export extends false finally for from function if import in instanceof interface let new null of return static super switch this throw true try type typeof undefined var void while yield",
  )],
  ["json", language("(?!)", SHORT, "false null true")],
]);

const ALIASES = new Map(
  Object.entries({
    python: "py python3 ipython pycon",
    bash: "sh shell zsh console terminal command cmd",
    js: "javascript jsx mjs node ts tsx typescript",
    json: "jsonc json5 jsonl",
  }).flatMap(([name, others]) => [name, ...others.split(" ")].map((one) => [one, name])),
);

function language(comment, string, keywords) {
  const parts = `(?<comment>${comment})|(?<string>${string})|(?<number>${NUMBER})|(?<keyword>${WORD})`;
  return { pattern: new RegExp(parts, "gu"), keywords: new Set(keywords.split(" ")) };
}

/**
 * The language of a name: a fence's word, the end of a file's name, a tool or its argument; "" where it is unknown.
 * @param {unknown} name such as "py", "src/main.py" or "run_python"
 */
export function languageOf(name) {
  const words = String(name ?? "").slice(-200).toLowerCase().split(/[^a-z0-9]+/);
  return ALIASES.get(words.findLast((word) => ALIASES.has(word))) ?? "";
}

/**
 * @param {string} text of which the first MOST characters are looked through
 * @param {string} name of a language, as `languageOf` gives it
 * @returns {[number, number, string][]} start, end and kind of each part, in order
 */
export function highlight(text, name) {
  const known = LANGUAGES.get(name);
  if (!known) return [];
  const found = [];
  for (const { index, 0: part, groups } of text.slice(0, MOST).matchAll(known.pattern)) {
    const kind = KINDS.find((one) => groups[one] !== undefined);
    if (kind !== "keyword" || known.keywords.has(part)) found.push([index, index + part.length, kind]);
  }
  return found;
}
