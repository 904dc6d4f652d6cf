/**
 * Alignment: puts token sequences under each other, so that equal tokens share a column.
 *
 * Every sequence is compared with the reference, part by part of each turn. Within a part: common
 * ends, then stretches that occur once in both (patience), then the fewest edits (Myers) up to a
 * bound. Beyond it two stretches count as unrelated and stand side by side.
 */

const POLICY = 1; // SegmentKind.POLICY
const STRETCHES = [4, 1]; // tokens of a stretch that occurs once
const MAX_DEPTH = 6;
const MAX_EDITS = 96;
const SMALL = 24; // tokens of a stretch too short to look for anchors
const SHORT = 3; // a shorter match between long differences says nothing
const LONG = 6;

/**
 * @typedef {object} Sequence
 * @property {Int32Array} ids
 * @property {ArrayLike<number>} turn the turn of each token
 * @property {ArrayLike<number>} kinds
 */

/**
 * @typedef {object} Alignment
 * @property {number} numColumns
 * @property {Int32Array[]} rows for each sequence, the place of its token in each column, or -1
 * @property {Uint8Array} differs 1 for a column whose tokens are not all equal, or one is missing
 * @property {number} first the first such column, -1 where all is equal
 * @property {Int32Array} diverges for each sequence, its first column unlike the reference, or -1
 */

/**
 * Aligns sequences with one of them.
 * @param {Sequence[]} sequences
 * @param {number} [reference] which of them
 * @returns {Alignment}
 */
export function align(sequences, reference = 0) {
  const base = sequences[reference];
  const length = base.ids.length;
  const matches = sequences.map((one, index) => (index === reference ? null : matchRuns(base, one)));
  const slots = new Int32Array(length + 1); // columns inserted before each place of the reference
  for (const [index, runs] of matches.entries()) {
    if (runs === null) continue;
    for (const gap of gapsOf(runs, length, sequences[index].ids.length)) {
      const more = gap.b1 - gap.b0 - (gap.a1 - gap.a0);
      if (more > slots[gap.a1]) slots[gap.a1] = more;
    }
  }
  const place = new Int32Array(length + 1); // column of each place of the reference
  let column = 0;
  for (let i = 0; i <= length; i += 1) {
    column += slots[i];
    place[i] = column;
    if (i < length) column += 1;
  }
  const rows = sequences.map((one, index) => rowOf(one.ids.length, matches[index], place, slots, column));
  return { numColumns: column, rows, ...compared(sequences, rows, reference, column) };
}

function rowOf(count, runs, place, slots, numColumns) {
  const row = new Int32Array(numColumns).fill(-1);
  const length = place.length - 1;
  if (runs === null) {
    for (let i = 0; i < length; i += 1) row[place[i]] = i;
    return row;
  }
  for (const [i, j, size] of runs) {
    for (let k = 0; k < size; k += 1) row[place[i + k]] = j + k;
  }
  for (const { a0, a1, b0, b1 } of gapsOf(runs, length, count)) {
    const paired = Math.min(a1 - a0, b1 - b0);
    for (let k = 0; k < paired; k += 1) row[place[a0 + k]] = b0 + k;
    const slot = place[a1] - slots[a1];
    for (let k = b0 + paired; k < b1; k += 1) row[slot + k - b0 - paired] = k;
  }
  return row;
}

function compared(sequences, rows, reference, numColumns) {
  const differs = new Uint8Array(numColumns);
  const diverges = new Int32Array(sequences.length).fill(-1);
  const base = sequences[reference].ids;
  const baseRow = rows[reference];
  for (const [index, row] of rows.entries()) {
    if (index === reference) continue;
    const { ids } = sequences[index];
    for (let column = 0; column < numColumns; column += 1) {
      const [a, b] = [baseRow[column], row[column]];
      if (a < 0 ? b < 0 : b >= 0 && base[a] === ids[b]) continue;
      differs[column] = 1;
      if (diverges[index] < 0) diverges[index] = column;
    }
  }
  return { differs, first: differs.indexOf(1), diverges };
}

/** The stretches between matched runs: `a` of the reference, `b` of the other. */
function* gapsOf(runs, lengthA, lengthB) {
  let a0 = 0;
  let b0 = 0;
  for (const [i, j, size] of runs) {
    if (i > a0 || j > b0) yield { a0, a1: i, b0, b1: j };
    a0 = i + size;
    b0 = j + size;
  }
  if (a0 < lengthA || b0 < lengthB) yield { a0, a1: lengthA, b0, b1: lengthB };
}

/**
 * The runs of equal tokens of two sequences, ascending in both.
 * @param {Sequence} a
 * @param {Sequence} b
 * @returns {[number, number, number][]} place in a, place in b, length; 0 where parts begin together
 */
export function matchRuns(a, b) {
  const runs = [];
  const parts = partsOf(b);
  let reached = 0;
  for (const [key, [a0, a1]] of partsOf(a)) {
    const other = parts.get(key);
    if (!other || other[0] < reached) continue; // parts ascend in both
    runs.push([a0, other[0], 0]); // a part begins in one column, whatever was unlike before
    matchRange(a.ids, a0, a1, b.ids, other[0], other[1], runs, 0);
    reached = other[1];
  }
  return tidied(joined(runs), a.ids.length, b.ids.length);
}

/** Parts of each turn, what was given and what was sampled, as `[start, end)`. */
function partsOf({ ids, turn, kinds }) {
  const parts = new Map();
  let start = 0;
  let number = 0;
  for (let i = 1; i <= ids.length; i += 1) {
    const sameTurn = i < ids.length && turn[i] === turn[i - 1];
    if (sameTurn && (kinds[i] === POLICY) === (kinds[i - 1] === POLICY)) continue;
    parts.set(`${turn[i - 1]}/${number}`, [start, i]);
    number = sameTurn ? number + 1 : 0;
    start = i;
  }
  return parts;
}

function matchRange(a, a0, a1, b, b0, b1, out, depth) {
  let head = 0;
  while (a0 + head < a1 && b0 + head < b1 && a[a0 + head] === b[b0 + head]) head += 1;
  if (head > 0) out.push([a0, b0, head]);
  a0 += head;
  b0 += head;
  let tail = 0;
  while (a1 - tail > a0 && b1 - tail > b0 && a[a1 - tail - 1] === b[b1 - tail - 1]) tail += 1;
  a1 -= tail;
  b1 -= tail;
  if (a0 < a1 && b0 < b1) matchMiddle(a, a0, a1, b, b0, b1, out, depth);
  if (tail > 0) out.push([a1, b1, tail]);
}

function matchMiddle(a, a0, a1, b, b0, b1, out, depth) {
  const isLarge = Math.min(a1 - a0, b1 - b0) >= SMALL && depth < MAX_DEPTH;
  const anchors = isLarge ? anchorsOf(a, a0, a1, b, b0, b1) : [];
  if (anchors.length === 0) {
    fewestEdits(a, a0, a1, b, b0, b1, out);
    return;
  }
  let [i, j] = [a0, b0];
  for (const [nextI, nextJ] of anchors) {
    if (nextI < i || nextJ < j) continue; // inside the stretch before
    matchRange(a, i, nextI, b, j, nextJ, out, depth + 1);
    let size = 0;
    while (nextI + size < a1 && nextJ + size < b1 && a[nextI + size] === b[nextJ + size]) size += 1;
    out.push([nextI, nextJ, size]);
    [i, j] = [nextI + size, nextJ + size];
  }
  if (i < a1 && j < b1) matchRange(a, i, a1, b, j, b1, out, depth + 1);
}

/** Places of stretches that occur once in both, ascending in both. */
function anchorsOf(a, a0, a1, b, b0, b1) {
  for (const size of STRETCHES) {
    if (a1 - a0 < size || b1 - b0 < size) continue;
    const inA = singles(a, a0, a1, size);
    const pairs = [];
    for (const [hash, j] of singles(b, b0, b1, size)) {
      const i = inA.get(hash) ?? -1;
      if (i >= 0 && j >= 0 && isEqual(a, i, b, j, size)) pairs.push([i, j]);
    }
    pairs.sort((one, other) => one[0] - other[0]);
    const found = ascending(pairs);
    if (found.length > 0) return found;
  }
  return [];
}

/** The place of each stretch by its hash; -1 where it occurs again. */
function singles(ids, start, end, size) {
  const places = new Map();
  for (let i = start; i + size <= end; i += 1) {
    let hash = ids[i];
    for (let k = 1; k < size; k += 1) hash = (Math.imul(hash, 0x9e3779b1) ^ ids[i + k]) | 0;
    places.set(hash, places.has(hash) ? -1 : i);
  }
  return places;
}

function isEqual(a, i, b, j, size) {
  for (let k = 0; k < size; k += 1) if (a[i + k] !== b[j + k]) return false;
  return true;
}

/** The longest subsequence of pairs whose second numbers ascend. */
function ascending(pairs) {
  const tops = []; // index of the pair that ends the best subsequence of each length
  const before = new Int32Array(pairs.length).fill(-1);
  for (const [index, [, j]] of pairs.entries()) {
    let [low, high] = [0, tops.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (pairs[tops[middle]][1] < j) low = middle + 1;
      else high = middle;
    }
    if (low > 0) before[index] = tops[low - 1];
    tops[low] = index;
  }
  const chain = [];
  for (let index = tops.at(-1) ?? -1; index >= 0; index = before[index]) chain.push(pairs[index]);
  return chain.reverse();
}

/**
 * Myers' greedy algorithm over `a[a0:a1]` and `b[b0:b1]`; puts the runs of equal tokens out. Nothing
 * is matched where it takes more than MAX_EDITS, or where most tokens would be edited.
 */
export function fewestEdits(a, a0, a1, b, b0, b1, out) {
  const [n, m] = [a1 - a0, b1 - b0];
  const most = Math.min((n + m + 1) >> 1, MAX_EDITS); // with more, half of both is unlike
  if (Math.abs(n - m) > most) return;
  const width = 2 * most + 3;
  const middle = most + 1;
  const reach = new Int32Array(width);
  const trace = [];
  for (let edits = 0; edits <= most; edits += 1) {
    trace.push(reach.slice(middle - edits - 1, middle + edits + 2));
    for (let k = -edits; k <= edits; k += 2) {
      const down = k === -edits || (k !== edits && reach[middle + k - 1] < reach[middle + k + 1]);
      let x = down ? reach[middle + k + 1] : reach[middle + k - 1] + 1;
      while (x < n && x - k < m && a[a0 + x] === b[b0 + x - k]) x += 1;
      reach[middle + k] = x;
      if (x >= n && x - k >= m) {
        backtrack(trace, edits, n, m, a0, b0, out);
        return;
      }
    }
  }
}

/** Follows the trace back and puts the runs of equal tokens out in order. */
function backtrack(trace, edits, n, m, a0, b0, out) {
  const found = [];
  let [x, y] = [n, m];
  for (let d = edits; d >= 0; d -= 1) {
    const row = trace[d];
    const middle = d + 1;
    const k = x - y;
    const down = k === -d || (k !== d && row[middle + k - 1] < row[middle + k + 1]);
    const from = down ? k + 1 : k - 1;
    const startX = d === 0 ? 0 : row[middle + from];
    const startY = d === 0 ? 0 : startX - from;
    const runX = d === 0 ? 0 : down ? startX : startX + 1;
    if (x > runX) found.push([a0 + runX, b0 + runX - k, x - runX]);
    [x, y] = [startX, startY];
  }
  for (let i = found.length - 1; i >= 0; i -= 1) out.push(found[i]);
}

function joined(runs) {
  const result = [];
  for (const run of runs) {
    const last = result.at(-1);
    if (last && last[0] + last[2] === run[0] && last[1] + last[2] === run[1]) last[2] += run[2];
    else result.push([...run]);
  }
  return result;
}

/** Without matches of a token or two in the middle of long differences. */
function tidied(runs, lengthA, lengthB) {
  return runs.filter(([i, j, size], index) => {
    if (size >= SHORT || size === 0) return true;
    const [beforeI, beforeJ, beforeSize] = runs[index - 1] ?? [0, 0, 0];
    const [afterI, afterJ] = runs[index + 1] ?? [lengthA, lengthB, 0];
    const left = Math.max(i - beforeI - beforeSize, j - beforeJ - beforeSize);
    const right = Math.max(afterI - i - size, afterJ - j - size);
    return left < LONG || right < LONG;
  });
}
