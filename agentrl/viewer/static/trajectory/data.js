/** Data: what the page knows of a trajectory, and what it derives from it. Pure but for the cache. */
import { get, ofRun } from "../lib/api.js";
import { parseJson } from "../lib/exact_json.js";
import { shortName } from "./tokens/display.js";

const KEPT = 8;
const kept = new Map(); // path and query -> promise of the answer; the oldest first

/**
 * An answer about a trajectory, kept for a while: episodes do not change once written, so stepping
 * back and forth asks once. What an environment or a model wrote is shown as it is: integers are exact.
 * @param {string} run the run's key
 * @param {string} what such as "trajectory" or "tokens"
 * @param {Record<string, unknown>} params
 * @returns {Promise<any>}
 */
export function ask(run, what, params) {
  const key = JSON.stringify([run, what, params]);
  const known = kept.get(key);
  if (known) {
    kept.delete(key);
    kept.set(key, known);
    return known;
  }
  const answer = get(ofRun(run, what), params, { parse: parseJson });
  kept.set(key, answer);
  answer.catch(() => kept.delete(key));
  while (kept.size > KEPT) kept.delete(kept.keys().next().value);
  return answer;
}

/** Forgets the answers about a run, or one trajectory of it, since something new is known. */
export function forget(run, id = null) {
  for (const key of kept.keys()) {
    const [itsRun, , params] = JSON.parse(key);
    if (itsRun === run && (id === null || params.id === id)) kept.delete(key);
  }
}

/**
 * The problems of a turn: calls that failed, calls that could not be read, a completion cut short.
 * @param {object} turn
 * @returns {string[]}
 */
export function problemsOf(turn) {
  const problems = [];
  for (const { call, problem, result } of turn.calls ?? []) {
    const name = call?.name || result?.name || "call";
    if (problem) problems.push(`${name}: ${problem.kind}`);
    else if (result?.error) problems.push(`${name}: ${result.error}`);
  }
  if (turn.finish_reason === "length") problems.push("cut at the token limit");
  return problems;
}

/** @param {object} turn @returns {string[]} the names of the tools that it called */
export function toolsOf(turn) {
  return (turn.calls ?? []).map(({ call, result }) => call?.name || result?.name || "unreadable call");
}

/** @param {object} turn @returns {number} the sum of its step rewards; NaN without any */
export function rewardOf(turn) {
  const parts = Object.values(turn.rewards ?? {}).filter((part) => typeof part === "number");
  return parts.length ? parts.reduce((sum, part) => sum + part, 0) : NaN;
}

/**
 * The token sequences of an episode: one, unless it branched or has several agents.
 * @param {object[]} turns
 * @returns {{sequence: number, agents: string[], turns: object[]}[]}
 */
export function lanesOf(turns) {
  const lanes = new Map();
  for (const turn of turns) {
    const sequence = turn.sequence ?? 0;
    if (!lanes.has(sequence)) lanes.set(sequence, { sequence, agents: [], turns: [] });
    const lane = lanes.get(sequence);
    lane.turns.push(turn);
    if (!lane.agents.includes(turn.agent)) lane.agents.push(turn.agent);
  }
  return [...lanes.values()];
}

/** Whether a turn goes on from another than the one before it. */
export function isBranch(turn) {
  const parent = turn?.parent ?? null;
  return parent !== null && parent !== turn.index - 1;
}

/**
 * The rows of turns that lie side by side: one below the other as they were made, but a branch beside what it is an
 * alternative to.
 * @param {object[]} turns
 * @returns {number[]} a row a turn
 */
export function rowsOf(turns) {
  const rows = new Map(); // by the turn's index
  const branched = new Set(); // turns from which one goes on already
  let last = -1;
  for (const { index, parent = null } of turns) {
    const after = rows.get(parent) ?? -1;
    last = branched.has(parent) ? after + 1 : Math.max(after, last) + 1;
    if (parent !== null) branched.add(parent);
    rows.set(index, last);
  }
  return turns.map(({ index }) => rows.get(index));
}

/** A sequence in words: its agents, and the turn of another sequence at which it begins. */
export function laneTitle({ sequence, agents, turns }) {
  const parent = turns[0]?.parent ?? null;
  const from = parent === null ? "" : `, branches after turn ${parent}`;
  return `sequence ${sequence}: ${agents.map((agent) => shortName(agent)).join(", ")}${from}`;
}

/**
 * What was learned of an episode, by whom and when: each has values of tokens of its own.
 * @param {object[]} annotations of the trajectory, the oldest first
 * @returns {{key: string, learner: string, step: number, label: string}[]} the newest first
 */
export function learnedOf(annotations) {
  const found = new Map();
  for (const { learner = "actor", step } of annotations ?? []) {
    if (step === undefined || step === null) continue;
    const key = `${learner}@${step}`;
    found.set(key, { key, learner, step, label: `${learner} in step ${step}` });
  }
  return [...found.values()].reverse();
}

/**
 * @param {object[]} turns
 * @param {number} from a turn's index
 * @param {1 | -1} step
 * @param {(turn: object) => boolean} wanted
 * @returns {number | null} the index of the next turn that is wanted, around the end
 */
export function nextTurn(turns, from, step, wanted) {
  for (let tried = 1; tried <= turns.length; tried++) {
    const at = (((from + step * tried) % turns.length) + turns.length) % turns.length;
    if (wanted(turns[at])) return turns[at].index;
  }
  return null;
}

/**
 * Reads `tokens=120-140` of an address: `[120, 140)`; a single number is one token.
 * @param {string | undefined} text
 * @param {number} [count] tokens of the trajectory
 * @returns {[number, number] | null}
 */
export function parseTokens(text, count = Infinity) {
  const match = /^(\d+)(?:-(\d+))?$/.exec(text ?? "");
  if (!match) return null;
  const start = Number(match[1]);
  const end = Math.max(start + 1, Number(match[2] ?? 0));
  return start < count ? [start, Math.min(end, count)] : null;
}
