/** Columns: cuts an alignment into blocks of a given width, long equal stretches folded away. */
import { showEvery } from "./unseen.js";

const FOLD = 48; // equal columns from which on a stretch is folded
const KEPT = 8; // of them shown at each end
const MOST_WIDTH = 28; // characters of one token
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|[\ud83c-\ud83e]/;

/**
 * A token's text in a cell: its line breaks and controls shown, cut.
 * @param {string} piece
 */
export function cellText(piece) {
  const text = showEvery(piece.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll("\r", "␍"));
  return text.length > MOST_WIDTH ? `${text.slice(0, MOST_WIDTH - 1)}…` : text;
}

/** Characters of a fixed width that a text takes. */
export function widthOf(text) {
  let width = text.length;
  if (WIDE.test(text)) {
    width = 0;
    for (const character of text) width += character.length > 1 || WIDE.test(character) ? 2 : 1;
  }
  return width;
}

/**
 * The stretches of columns to show: `[start, end, folded]`.
 * @param {Uint8Array} differs of the alignment
 * @param {boolean} fold whether long equal stretches are folded
 */
export function stretches(differs, fold) {
  const found = [];
  let start = 0;
  for (let i = 1; i <= differs.length; i += 1) {
    if (i < differs.length && differs[i] === differs[start]) continue;
    const [from, to] = [start, i];
    start = i;
    if (differs[from] || !fold || to - from < FOLD) {
      found.push([from, to, false]);
      continue;
    }
    const head = from === 0 ? 0 : KEPT; // what comes before the first difference is the prompt
    const tail = to === differs.length ? 0 : KEPT;
    if (head) found.push([from, from + head, false]);
    found.push([from + head, to - tail, true]);
    if (tail) found.push([to - tail, to, false]);
  }
  return found;
}

/**
 * Blocks of columns, each at most `width` characters wide.
 * @param {import("../workers/alignment.js").Alignment} alignment
 * @param {string[][]} pieces of each sequence
 * @param {number} width
 * @param {boolean} fold
 * @returns {{columns: number[], widths: number[], folded: number}[]} a block with `folded` stands
 *   for that many equal columns and has none of its own
 */
export function blocksOf({ rows, differs }, pieces, width, fold) {
  const blocks = [];
  let block = null;
  let used = 0;
  for (const [start, end, folded] of stretches(differs, fold)) {
    if (folded) {
      blocks.push({ columns: [start], widths: [0], folded: end - start });
      block = null;
      continue;
    }
    for (let column = start; column < end; column += 1) {
      const own = columnWidth(rows, pieces, column);
      if (block === null || used + own > width) {
        block = { columns: [], widths: [], folded: 0 };
        blocks.push(block);
        used = 0;
      }
      block.columns.push(column);
      block.widths.push(own);
      used += own;
    }
  }
  return blocks;
}

function columnWidth(rows, pieces, column) {
  let most = 1;
  for (let i = 0; i < rows.length; i += 1) {
    const place = rows[i][column];
    if (place < 0) continue;
    const piece = pieces[i][place];
    const own = piece.length === 1 ? 1 : widthOf(cellText(piece));
    if (own > most) most = own;
  }
  return most;
}

/**
 * One sequence's cells of a block, neighbours of one look joined: `{look, text, place}`.
 * @param {{columns: number[], widths: number[]}} block
 * @param {Int32Array} row places of its tokens by column
 * @param {(place: number, column: number) => string} lookOf the class of a token; -1 is a gap
 * @param {string[]} pieces
 */
export function cellsOf({ columns, widths }, row, lookOf, pieces) {
  const cells = [];
  for (let i = 0; i < columns.length; i += 1) {
    const place = row[columns[i]];
    const look = lookOf(place, columns[i]);
    const text = place < 0 ? "" : cellText(pieces[place]);
    const padded = text + " ".repeat(Math.max(0, widths[i] - widthOf(text)));
    const last = cells.at(-1);
    if (last && last.look === look) last.text += padded;
    else cells.push({ look, text: padded, place });
  }
  return cells;
}
