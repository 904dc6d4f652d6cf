/**
 * Palette: a column's values as one of a few classes of colour.
 *
 * Classes are few and fixed, so that the style sheet holds the colours, light and dark, and a
 * repaint sets class names alone.
 */

const STEPS = 12;
const CATEGORIES = 10;

/** Class names by level; level 0 is a token without a value. */
export const CLASSES = [
  "",
  ...series("s", STEPS), // far from unremarkable, in one direction
  ...series("n", STEPS), // below the centre
  ...series("p", STEPS), // above the centre
  ...series("c", CATEGORIES),
];

const FIRST = { s: 1, n: 1 + STEPS, p: 1 + 2 * STEPS, c: 1 + 3 * STEPS };

function series(letter, count) {
  return Array.from({ length: count }, (_, index) => `${letter}${index}`);
}

/**
 * @param {import("../token_model.js").TokenColumn} column
 * @returns {Uint8Array} an index of CLASSES a token
 */
export function paintLevels(column) {
  return column.once("levels", () =>
    column.form === "category" ? categoryLevels(column) : numberLevels(column),
  );
}

function categoryLevels(column) {
  const { values } = column;
  const place = new Map(column.distinct.map((value, index) => [value, index % CATEGORIES]));
  const levels = new Uint8Array(values.length);
  for (let i = 0; i < values.length; i++) {
    const index = place.get(values[i]);
    if (index !== undefined) levels[i] = FIRST.c + index;
  }
  return levels;
}

function numberLevels(column) {
  const { values, severity, limit, form } = column;
  const middle = form === "ratio" ? 1 : 0;
  const two = form === "ratio" || form === "centre";
  const levels = new Uint8Array(values.length);
  for (let i = 0; i < values.length; i++) {
    if (severity[i] !== severity[i]) continue;
    const step = stepOf(severity[i], limit);
    const first = !two ? FIRST.s : values[i] < middle ? FIRST.n : FIRST.p;
    levels[i] = first + step;
  }
  return levels;
}

function stepOf(severity, limit) {
  const share = severity / limit;
  return share > 0 ? Math.min(STEPS - 1, Math.floor(share * STEPS)) : 0;
}

/**
 * @param {import("../token_model.js").TokenColumn} column of a category
 * @returns {{label: string, className: string}[]} a swatch a value
 */
export function categorySwatches(column) {
  return column.distinct.map((value, index) => ({
    label: column.format(value),
    className: CLASSES[FIRST.c + (index % CATEGORIES)],
  }));
}

/**
 * @param {import("../token_model.js").TokenColumn} column of numbers
 * @returns {{low: string, high: string, classNames: string[]}} the ends of its scale as text, and
 *   the colours between them
 */
export function numberScale(column) {
  const { form, limit } = column;
  const far = series("s", STEPS).filter((_, index) => index % 2 === 1);
  const at = (signed) => column.format(shownAt(form, signed));
  if (form === "high") return { low: at(0), high: at(limit), classNames: far };
  if (form === "low") return { low: at(limit), high: at(0), classNames: far.reverse() };
  const below = far.map((name) => name.replace("s", "n")).reverse();
  const above = far.map((name) => name.replace("s", "p"));
  return { low: at(-limit), high: at(limit), classNames: [...below, ...above] };
}

function shownAt(form, signed) {
  if (form === "ratio") return Math.exp(signed);
  return form === "low" ? -signed : signed;
}
