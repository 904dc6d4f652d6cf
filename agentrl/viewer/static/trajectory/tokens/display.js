/** Display: a token's text with what cannot be seen made visible. */

const BREAKS = /[\n\r\t]/g;
const UNSEEN =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const VISIBLE_BREAKS = { "\n": "↵\n", "\r": "⟨CR⟩", "\t": "⇥\t" };

/**
 * @param {string} piece
 * @param {string | undefined} hex the token's bytes where they are no whole characters
 * @returns {string} text to show: newlines, tabs and invisible characters have a visible sign
 */
export function shownPiece(piece, hex) {
  if (hex !== undefined) return hex.replace(/../g, "\\x$&");
  return showUnseen(piece).replace(BREAKS, (sign) => VISIBLE_BREAKS[sign]);
}

/**
 * Control characters, marks of direction and of no width, as visible signs; newlines and tabs stay.
 * @param {string} text
 * @returns {string}
 */
export function showUnseen(text) {
  return text.replace(UNSEEN, (sign) => {
    const code = sign.charCodeAt(0).toString(16).toUpperCase();
    return `⟨U+${code.padStart(4, "0")}⟩`;
  });
}

/**
 * A foreign name on one line, cut where it is long.
 * @param {unknown} text
 * @param {number} most characters
 * @returns {string}
 */
export function shortName(text, most = 80) {
  const line = String(text ?? "")
    .slice(0, 4 * most)
    .replace(/\s+/g, " ")
    .trim();
  return showUnseen(line.length > most ? `${line.slice(0, most)}…` : line);
}

/**
 * @param {string} piece
 * @param {string | undefined} hex
 * @returns {string} its bytes in UTF-8, `e2 82 ac`
 */
export function bytesOf(piece, hex) {
  const bytes = hex ?? hexOf(new TextEncoder().encode(piece));
  return bytes.replace(/..(?=.)/g, "$& ");
}

function hexOf(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
