/** Partition: cuts the token axis into blocks that are painted or left out as a whole. */

/** Most tokens of a block. */
export const BLOCK_TOKENS = 128;

const SEARCH = 40;

/**
 * @param {import("../token_model.js").TokenModel} model
 * @param {number | null} sequence the one to show; null for all, turns end to end
 * @returns {{start: number, end: number, head: boolean}[]} `[start, end)` of one turn each; `head`
 *   where a turn begins. A block ends after a newline where one is near its end.
 */
export function partition(model, sequence = null) {
  const blocks = [];
  let start = 0;
  let head = true;
  while (start < model.count) {
    const turn = model.turn[start];
    let stop = start + 1;
    while (stop < model.count && model.turn[stop] === turn) stop++;
    if (sequence === null || model.sequence[start] === sequence) {
      head = true;
      while (start < stop) {
        const end = blockEnd(model.pieces, start, stop);
        blocks.push({ start, end, head });
        head = false;
        start = end;
      }
    }
    start = stop;
  }
  return blocks;
}

function blockEnd(pieces, start, stop) {
  const full = start + BLOCK_TOKENS;
  if (full >= stop) return stop;
  for (let end = full; end > full - SEARCH; end--) {
    if (pieces[end - 1].endsWith("\n")) return end;
  }
  return full;
}

/**
 * @param {string[]} pieces
 * @param {{start: number, end: number}} block
 * @param {number} columns characters in a line
 * @returns {number} lines that the block will take
 */
export function estimateLines(pieces, block, columns) {
  let lines = 1;
  let used = 0;
  for (let i = block.start; i < block.end; i++) {
    const piece = pieces[i];
    const size = piece.length;
    if (used > 0 && used + size > columns) {
      lines += 1;
      used = 0;
    }
    used += size;
    if (piece.includes("\n")) {
      lines += 1;
      used = 0;
    } else if (used > columns) {
      lines += Math.floor(used / columns);
      used %= columns;
    }
  }
  return lines;
}

/** Heights of blocks, estimated until they are measured. */
export class BlockHeights {
  /** @param {number[]} estimates pixels a block */
  constructor(estimates) {
    this.heights = Float64Array.from(estimates);
    this.tops = new Float64Array(estimates.length + 1);
    this.stale = 0; // tops are right up to here
    this.refresh();
  }

  refresh() {
    for (let i = this.stale; i < this.heights.length; i++) {
      this.tops[i + 1] = this.tops[i] + this.heights[i];
    }
    this.stale = this.heights.length;
  }

  /** @param {number} index @param {number} height @returns {number} pixels by which it grew */
  measure(index, height) {
    const grown = height - this.heights[index];
    if (grown !== 0) {
      this.heights[index] = height;
      this.stale = Math.min(this.stale, index);
    }
    return grown;
  }

  /** @returns {number} pixels of all blocks */
  get total() {
    this.refresh();
    return this.tops[this.heights.length];
  }

  /** @param {number} index @returns {number} pixels above the block */
  top(index) {
    this.refresh();
    return this.tops[index];
  }

  /** @param {number} offset pixels @returns {number} the block at that height */
  at(offset) {
    this.refresh();
    let low = 0;
    let high = this.heights.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.tops[middle] <= offset) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}
