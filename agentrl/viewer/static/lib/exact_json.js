/** Exact JSON: an integer that a JavaScript number would round, beyond 2^53, is a BigInt. */

const LONG = /(?<![\d.eE+-])-?\d{16,}(?![\d.eE])/g; // no such integer is shorter

/**
 * The value of a JSON text.
 * @param {string} text
 * @returns {any}
 * @throws {SyntaxError}
 */
export function parseJson(text) {
  const mark = markFor(text);
  const parts = [];
  let [taken, inString, quote] = [0, false, text.indexOf('"')];
  for (const { 0: digits, index } of text.matchAll(LONG)) {
    for (; quote >= 0 && quote < index; quote = text.indexOf('"', quote + 1)) {
      if (!isEscaped(text, quote)) inString = !inString;
    }
    if (inString || Number.isSafeInteger(Number(digits))) continue;
    parts.push(text.slice(taken, index), `"${mark}${digits}"`);
    taken = index + digits.length;
  }
  if (parts.length === 0) return JSON.parse(text);
  const marked = parts.join("") + text.slice(taken);
  const isMarked = (value) => typeof value === "string" && value.startsWith(mark);
  return JSON.parse(marked, (_, value) => (isMarked(value) ? BigInt(value.slice(mark.length)) : value));
}

function isEscaped(text, place) {
  let start = place;
  while (text[start - 1] === "\\") start -= 1;
  return (place - start) % 2 === 1;
}

/**
 * The JSON text of a value of `parseJson`.
 * @param {unknown} value
 * @param {number} [indent]
 * @returns {string}
 */
export function jsonText(value, indent = 0) {
  let isExact = true; // by JSON's own means
  const written = (mark) =>
    JSON.stringify(
      value,
      (_, item) => {
        if (typeof item !== "bigint") return item;
        isExact = false;
        return `${mark}${item}`;
      },
      indent,
    );
  const plain = written("");
  if (isExact) return plain;
  const mark = markFor(plain);
  return written(mark).replace(new RegExp(`"${mark}(-?\\d+)"`, "g"), "$1");
}

/** A word that is nowhere in a text. */
function markFor(text) {
  let mark;
  do mark = `int ${Math.floor(Math.random() * 2 ** 53)} `;
  while (text.includes(mark));
  return mark;
}
