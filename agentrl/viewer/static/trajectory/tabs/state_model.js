/**
 * State model: the environment's states and the sandbox's files, step by step. Pure.
 *
 * Step 0 is after `reset`; step k is after turn k - 1. A turn that recorded no state leaves the one
 * before it standing.
 */
import { jsonText, parseJson } from "../../lib/exact_json.js";

/**
 * @param {object} answer of the trajectory
 * @returns {{turn: number | null, state: object | null, changed: Map<string, object | null>}[]}
 *   `turn` is null for what `reset` left; `state` is null before any was recorded
 */
export function stepsOf(answer) {
  let state = blobOf(answer.first_state);
  const steps = [{ turn: null, state, changed: new Map() }];
  for (const turn of answer.turns) {
    state = blobOf(turn.state) ?? state;
    const files = Object.entries(turn.files ?? {}).map(([path, blob]) => [path, blobOf(blob)]);
    steps.push({ turn: turn.index, state, changed: new Map(files) });
  }
  return steps;
}

/** The record of a blob, which the store marks `{"$blob": ...}`; null where there is none. */
function blobOf(value) {
  return value?.$blob ?? value ?? null;
}

/**
 * The files after a step, as far as their changes are recorded.
 * @param {ReturnType<typeof stepsOf>} steps
 * @param {number} at
 * @returns {{path: string, blob: object | null, before: object | null | undefined, changed: boolean}[]}
 *   by path; `blob` is null for a file deleted in this step, `before` what it was until its last
 *   change, undefined where it was not known before
 */
export function filesAt(steps, at) {
  const files = new Map();
  let touched = []; // by the step before
  for (const { changed } of steps.slice(0, at + 1)) {
    for (const entry of touched) {
      if (entry.blob === null) files.delete(entry.path);
      else entry.changed = false;
    }
    touched = [...changed].map(([path, blob]) => ({ path, blob, before: files.get(path)?.blob, changed: true }));
    for (const entry of touched) files.set(entry.path, entry);
  }
  return [...files.values()].sort((a, b) => (a.path < b.path ? -1 : 1));
}

/** @returns {boolean} whether any step recorded anything */
export function hasStates(steps) {
  return steps.some(({ state, changed }) => state !== null || changed.size > 0);
}

/** Forms that a state may name in `form`, each with the key of what it shows (docs/envs.md). */
const FORMS = new Map([
  ["text", "text"],
  ["table", "rows"],
  ["grid", "cells"],
  ["image", "base64"],
]);

/**
 * @param {unknown} state
 * @returns {"text" | "table" | "grid" | "image" | "json"} the form that it names and has
 */
export function formOf(state) {
  if (state === null || typeof state !== "object") return "json";
  const key = FORMS.get(state.form);
  return key !== undefined && Object.hasOwn(state, key) ? state.form : "json";
}

/**
 * Rows of a table or grid: lists, or words with a character a cell; of very many the first.
 * @param {object} state
 * @returns {{columns: string[], rows: unknown[][], more: number, cut: boolean} | null} null where it is no table;
 *   `more` rows are left out, and cells of a row where it is `cut`
 */
export function rowsOf(state) {
  const all = state.form === "grid" ? state.cells : state.rows;
  if (!Array.isArray(all)) return null;
  const columns = Array.isArray(state.columns) ? state.columns.slice(0, MOST_CELLS).map(String) : [];
  const shown = all.slice(0, MOST_ROWS);
  const cut = shown.some((row) => row?.length > MOST_CELLS) || columns.length < (state.columns?.length ?? 0);
  return { columns, rows: shown.map(cellsOf), more: all.length - shown.length, cut };
}

const MOST_ROWS = 200;
const MOST_CELLS = 100;

function cellsOf(row) {
  if (Array.isArray(row)) return row.slice(0, MOST_CELLS);
  return typeof row === "string" ? [...row.slice(0, 2 * MOST_CELLS)].slice(0, MOST_CELLS) : [row];
}

/** @param {string} text @returns {unknown} its JSON; a state that is none is its text */
export function parsed(text) {
  try {
    return parseJson(text);
  } catch {
    return text;
  }
}

const LINE = 100;
const DEEPEST = 200; // blanks of indentation; deeper JSON is cut, as it would end the stack

/**
 * JSON over several lines, in which a short list or mapping of plain values takes one.
 * @param {unknown} value
 * @param {string} [indent]
 * @returns {string}
 */
export function prettyJson(value, indent = "") {
  if (value === null || typeof value !== "object") return jsonText(value);
  if (indent.length > DEEPEST) return "…";
  const inner = Array.isArray(value) ? value : Object.values(value);
  const plain = inner.every((item) => item === null || typeof item !== "object");
  const line = plain ? jsonText(value) : "";
  if (plain && line.length <= LINE) return line;
  const deeper = `${indent}  `;
  const lines = Array.isArray(value)
    ? value.map((item) => deeper + prettyJson(item, deeper))
    : Object.entries(value).map(
        ([key, item]) => `${deeper}${JSON.stringify(key)}: ${prettyJson(item, deeper)}`,
      );
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return `${open}\n${lines.join(",\n")}\n${indent}${close}`;
}
