/** Curves: metrics by prefix, and their values as a chart takes them. Pure functions. */

/** What a chart's x may be, and what it is called. */
export const AXES = { step: "step", tokens: "trained tokens", time: "time" };

/** Names in the address, one a line: a name of a run may hold anything else. */
export const packed = (names) => names.join("\n");
export const unpacked = (text) => (text ?? "").split("\n").filter(Boolean);

/**
 * The names with every word of a filter, by what stands before their first slash.
 * @param {string[]} names sorted
 * @param {string} filter
 * @returns {[string, string[]][]}
 */
export function grouped(names, filter) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const groups = new Map();
  for (const name of names) {
    if (!words.every((word) => name.toLowerCase().includes(word))) continue;
    const prefix = name.includes("/") ? name.slice(0, name.indexOf("/")) : "";
    if (!groups.has(prefix)) groups.set(prefix, []);
    groups.get(prefix).push(name);
  }
  return [...groups];
}

/**
 * The running mean of values, in which each earlier one counts `weight` times less; null stays null.
 * @param {(number|null)[]} values
 * @param {number} weight at least 0, below 1
 */
export function smoothed(values, weight) {
  let [sum, total] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + value * (1 - weight);
    total = total * weight + (1 - weight);
    return sum / total;
  });
}

/**
 * A curve by its axis, ascending; points without a place are left out.
 * @param {Record<string, (number|null)[]>} curve columns of one length
 * @param {string} axis the column that is x
 */
export function ordered(curve, axis) {
  const places = curve[axis].map((_, index) => index).filter((index) => curve[axis][index] !== null);
  places.sort((a, b) => curve[axis][a] - curve[axis][b] || a - b); // the times of a resumed run may go back
  return (name) => places.map((index) => curve[name][index]);
}

/**
 * Columns of several curves over the union of their places.
 * @param {{x: number[], columns: (number|null)[][]}[]} curves
 * @returns {{x: number[], columns: (number|null)[][][]}} each curve's columns
 */
export function joined(curves) {
  const x = [...new Set(curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  const columns = curves.map((curve) => {
    const at = new Map(curve.x.map((place, index) => [place, index])); // of two at one place the later
    return curve.columns.map((column) => x.map((place) => (at.has(place) ? column[at.get(place)] : null)));
  });
  return { x, columns };
}

/** The values that have a place on a logarithmic axis, the others null. */
export const positive = (values) => values.map((value) => (value > 0 ? value : null));
