/**
 * Text diff: the lines of two texts, aligned (Myers' greedy algorithm).
 *
 * Equal heads and tails are cut off first. Where more than MOST_EDITS lines differ, the middle is
 * one replacement, which is right but not least.
 */

const MOST_EDITS = 1000;

/**
 * @param {string} before
 * @param {string} after
 * @returns {{kind: "same" | "gone" | "new", text: string}[]} a line each
 */
export function diffLines(before, after) {
  return diffItems(before.split("\n"), after.split("\n")).map(({ kind, item }) => ({ kind, text: item }));
}

/**
 * @template T
 * @param {T[]} before
 * @param {T[]} after
 * @returns {{kind: "same" | "gone" | "new", item: T}[]}
 */
export function diffItems(before, after) {
  let head = 0;
  const least = Math.min(before.length, after.length);
  while (head < least && before[head] === after[head]) head++;
  let tail = 0;
  while (tail < least - head && before.at(-1 - tail) === after.at(-1 - tail)) tail++;
  const marked = (kind, items) => items.map((item) => ({ kind, item }));
  return [
    ...marked("same", before.slice(0, head)),
    ...middle(before.slice(head, before.length - tail), after.slice(head, after.length - tail)),
    ...marked("same", tail ? before.slice(-tail) : []),
  ];
}

function middle(before, after) {
  const path = shortestEdits(before, after);
  if (path === null) {
    return [
      ...before.map((item) => ({ kind: "gone", item })),
      ...after.map((item) => ({ kind: "new", item })),
    ];
  }
  return path;
}

/** The edits of the shortest script, or null where it is longer than MOST_EDITS. */
function shortestEdits(before, after) {
  const most = Math.min(before.length + after.length, MOST_EDITS);
  const reach = new Int32Array(2 * most + 3); // furthest x on each diagonal, shifted by most + 1
  const trace = [];
  for (let edits = 0; edits <= most; edits++) {
    trace.push(reach.slice());
    for (let diagonal = -edits; diagonal <= edits; diagonal += 2) {
      const at = diagonal + most + 1;
      const down = diagonal === -edits || (diagonal !== edits && reach[at - 1] < reach[at + 1]);
      let x = down ? reach[at + 1] : reach[at - 1] + 1;
      while (x < before.length && x - diagonal < after.length && before[x] === after[x - diagonal]) x++;
      reach[at] = x;
      if (x >= before.length && x - diagonal >= after.length) {
        return walkBack(trace, before, after, most);
      }
    }
  }
  return null;
}

function walkBack(trace, before, after, most) {
  const edits = [];
  let x = before.length;
  let y = after.length;
  for (let step = trace.length - 1; step >= 0; step--) {
    const reach = trace[step];
    const diagonal = x - y;
    const at = diagonal + most + 1;
    const down = diagonal === -step || (diagonal !== step && reach[at - 1] < reach[at + 1]);
    const previous = down ? diagonal + 1 : diagonal - 1;
    const fromX = step === 0 ? 0 : reach[previous + most + 1];
    const fromY = step === 0 ? 0 : fromX - previous;
    while (x > fromX && y > fromY) {
      edits.push({ kind: "same", item: before[--x] });
      y--;
    }
    if (step > 0) {
      if (down) edits.push({ kind: "new", item: after[--y] });
      else edits.push({ kind: "gone", item: before[--x] });
    }
  }
  return edits.reverse();
}
