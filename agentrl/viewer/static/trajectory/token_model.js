/** Token model: the tokens of a trajectory and their columns, as arrays; no page, no network. */

import { decode as decodeArray } from "../lib/arrays.js";

/** Names of a token's kind, by its number in the store. */
export const KINDS = ["prompt", "policy", "observation", "template", "target"];

/**
 * One column of values, an entry a token; NaN is no value.
 *
 * `form` is how values become remarkable: `high` (large), `low` (far below 0), `centre` (far from
 * 0), `ratio` (far from 1, in logarithms) or `category` (any but the first).
 */
export class TokenColumn {
  /**
   * @param {string} name
   * @param {object} about level, unit, scale, help, categories as the run declares them
   * @param {() => ArrayLike<number>} read decodes the values at their first use
   */
  constructor(name, about, read) {
    this.name = name;
    this.level = about.level || "token";
    this.unit = about.unit || "";
    this.scale = about.scale || "linear";
    this.help = about.help || "";
    this.categories = Array.from(about.categories || []);
    this.plain = Boolean(about.plain); // a category whose values are all unremarkable
    this.read = read;
    this.cache = new Map();
  }

  /** @returns {ArrayLike<number>} a value a token */
  get values() {
    return this.once("values", this.read);
  }

  /** @returns {"high"|"low"|"centre"|"ratio"|"category"} */
  get form() {
    return this.once("form", () => formOf(this.scale, this.values));
  }

  /** @returns {Float32Array} how remarkable each token's value is, 0 and up; NaN without a value */
  get severity() {
    return this.once("severity", () => severityOf(this));
  }

  /** @returns {Float32Array} the severities that are numbers, ascending */
  get ranked() {
    return this.once("ranked", () => this.severity.filter((value) => value === value).sort());
  }

  /** @returns {number} the severity from which a colour is full: of 1 in 200 values */
  get limit() {
    return this.once("limit", () => limitOf(this.ranked));
  }

  /** @returns {number[]} distinct values of a category, ascending */
  get distinct() {
    return this.once("distinct", () =>
      this.categories.length
        ? this.categories.map((_, index) => index)
        : [...new Set(Array.from(this.values).filter((value) => value === value))].sort((a, b) => a - b),
    );
  }

  /** @returns {boolean} whether any token has a value */
  get present() {
    return this.once("present", () => Array.prototype.some.call(this.values, (v) => v === v));
  }

  /**
   * @param {number} token
   * @returns {string} its value for a reader, empty without one
   */
  text(token) {
    const value = this.values[token];
    return value === value && value !== undefined ? this.format(value) : "";
  }

  /** @param {number} value @returns {string} */
  format(value) {
    if (this.form === "category") return String(this.categories[value] ?? value);
    if (Number.isInteger(value)) return String(value);
    const size = Math.abs(value);
    return size >= 1e5 || size < 1e-3 ? value.toExponential(2) : value.toPrecision(4);
  }

  once(key, make) {
    if (!this.cache.has(key)) this.cache.set(key, make());
    return this.cache.get(key);
  }
}

function formOf(scale, values) {
  if (scale === "category") return "category";
  if (scale === "log") return "ratio";
  if (scale === "diverging") return "centre";
  let below = false;
  let above = false;
  for (let i = 0; i < values.length; i++) {
    if (values[i] < 0) below = true;
    else if (values[i] > 0) above = true;
  }
  if (below && above) return "centre";
  return below ? "low" : "high";
}

const SEVERITY = {
  high: (value) => value,
  low: (value) => -value,
  centre: Math.abs,
  ratio: (value) => (value > 0 ? Math.abs(Math.log(value)) : Infinity),
  category: (value) => (value > 0 ? 1 : 0),
};

function severityOf(column) {
  const measure = column.plain ? () => 0 : SEVERITY[column.form];
  const values = column.values;
  const severity = new Float32Array(values.length);
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    severity[i] = value === value ? measure(value) : NaN;
  }
  return severity;
}

function limitOf(ranked) {
  const rare = ranked[Math.ceil(ranked.length * 0.995) - 1];
  if (rare > 0 && rare < Infinity) return rare;
  for (let i = ranked.length - 1; i >= 0; i--) {
    if (ranked[i] > 0 && ranked[i] < Infinity) return ranked[i];
  }
  return 1;
}

/** The likeliest tokens beside sampled ones, as the engine gave them. */
export class TokenAlternatives {
  /** @param {object} answer `alternatives` of `/api/runs/RUN/tokens` */
  constructor(answer) {
    this.width = answer.width;
    this.tokens = decodeArray(answer.tokens);
    this.ids = decodeArray(answer.ids);
    this.logprobs = decodeArray(answer.logprobs);
    this.pieces = new Map(Object.entries(answer.pieces).map(([id, text]) => [Number(id), text]));
    this.bytes = new Map(Object.entries(answer.bytes).map(([id, hex]) => [Number(id), hex]));
  }

  /**
   * @param {number} token
   * @returns {{id: number, piece: string, hex: string | undefined, logprob: number}[]} by falling
   *   probability; empty where there are none
   */
  at(token) {
    const row = lowerBound(this.tokens, token);
    if (this.tokens[row] !== token) return [];
    const found = [];
    for (let i = row * this.width; i < (row + 1) * this.width; i++) {
      const id = this.ids[i];
      if (id < 0) continue;
      const logprob = this.logprobs[i];
      found.push({ id, piece: this.pieces.get(id) ?? "", hex: this.bytes.get(id), logprob });
    }
    return found;
  }
}

/**
 * The tokens of one trajectory, on one axis: turns end to end, a turn's context before its
 * completion.
 */
export class TokenModel {
  /** @param {object} answer of `/api/runs/RUN/tokens` */
  constructor(answer) {
    this.count = answer.num_tokens;
    this.ids = decodeArray(answer.ids);
    this.kinds = decodeArray(answer.kinds);
    this.turn = decodeArray(answer.turn);
    this.sequence = decodeArray(answer.sequence);
    this.pieces = answer.pieces;
    this.bytes = new Map(Object.entries(answer.bytes || {}).map(([at, hex]) => [Number(at), hex]));
    this.alternatives = answer.alternatives ? new TokenAlternatives(answer.alternatives) : null;
    this.missing = new Map(Object.entries(answer.missing || {}));
    this.columns = this.readColumns(answer.columns || {});
  }

  readColumns(declared) {
    const kind = { scale: "category", categories: KINDS, plain: true, help: "Where the token is from" };
    const columns = new Map([["kind", new TokenColumn("kind", kind, () => this.kinds)]]);
    for (const [name, about] of Object.entries(declared)) {
      const read = () => this.spread(about.level, decodeArray(about.values));
      const version = name === "policy_versions";
      const shown = version ? { ...about, scale: "category", plain: true } : about;
      columns.set(name, new TokenColumn(name, shown, version ? () => noNegatives(read()) : read));
    }
    return columns;
  }

  /** Values of turns or of the trajectory, repeated for their tokens. */
  spread(level, values) {
    if (values.length === this.count) return values;
    if (level === "trajectory") return new Float32Array(this.count).fill(values[0] ?? NaN);
    return Float32Array.from(this.turn, (turn) => values[turn] ?? NaN);
  }

  /** @returns {string[]} names of columns that have a value somewhere, kind first */
  get signals() {
    return [...this.columns.values()].filter((column) => column.present).map((c) => c.name);
  }
}

function noNegatives(versions) {
  return Float32Array.from(versions, (version) => (version < 0 ? NaN : version));
}

/**
 * @param {ArrayLike<number>} ascending
 * @param {number} value
 * @returns {number} the first position whose entry is at least `value`
 */
export function lowerBound(ascending, value) {
  let low = 0;
  let high = ascending.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ascending[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * @param {TokenColumn} column
 * @param {number} severity
 * @returns {number} tokens at least so remarkable
 */
export function countFrom(column, severity) {
  return column.ranked.length - lowerBound(column.ranked, severity);
}

/**
 * @param {TokenColumn} column
 * @param {number} most
 * @returns {number[]} tokens by falling severity, the earlier first among equals; none of severity 0
 */
export function jumpOrder(column, most = 1000) {
  const { ranked, severity } = column;
  const floor = ranked[Math.max(0, ranked.length - most)];
  const tokens = [];
  for (let i = 0; i < severity.length; i++) {
    if (severity[i] >= floor && severity[i] > 0) tokens.push(i);
  }
  tokens.sort((a, b) => severity[b] - severity[a] || a - b);
  return tokens.slice(0, most);
}

/**
 * @param {TokenColumn} column
 * @param {number} severity
 * @returns {string} the threshold in the column's own terms
 */
export function thresholdText(column, severity) {
  const unit = column.unit ? ` ${column.unit}` : "";
  if (column.form === "category") return `not ${column.categories[0] ?? 0}`;
  if (column.form === "low") return `≤ ${column.format(-severity)}${unit}`;
  if (column.form === "centre") return `|value| ≥ ${column.format(severity)}${unit}`;
  if (column.form === "ratio") {
    const factor = Math.exp(severity);
    return `≥ ${column.format(factor)} or ≤ ${column.format(1 / factor)}${unit}`;
  }
  return `≥ ${column.format(severity)}${unit}`;
}

/**
 * @param {TokenColumn} column
 * @param {number} bins
 * @returns {number[]} tokens in each of `bins` equal parts of [0, limit]; the last has all beyond
 */
export function severityHistogram(column, bins = 32) {
  const counts = new Array(bins).fill(0);
  for (const value of column.ranked) {
    counts[Math.min(bins - 1, Math.floor((value / column.limit) * bins))] += 1;
  }
  return counts;
}
