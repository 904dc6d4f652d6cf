/** Display: a token's text with what cannot be seen made visible. */
import { showEvery, showUnseen } from "../../lib/unseen.js";

const BREAKS = /[\n\r\t]/g;
const VISIBLE_BREAKS = { "\n": "↵\n", "\r": "⟨CR⟩", "\t": "⇥\t" };

/**
 * @param {string} piece
 * @param {string | undefined} hex the token's bytes where they are no whole characters
 * @returns {string} text to show: newlines, tabs and invisible characters have a visible sign
 */
export function shownPiece(piece, hex) {
  if (hex !== undefined) return hex.replace(/../g, "\\x$&");
  return showEvery(piece.replace(BREAKS, (sign) => VISIBLE_BREAKS[sign]));
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
