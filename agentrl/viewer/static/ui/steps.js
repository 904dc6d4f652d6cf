/** Steps: the steps of a run for which episodes were played, as the pages that choose some of them need. */
import { ofRun, useApi } from "../lib/api.js";

/**
 * @param {string} run the run's key
 * @returns {{data: {steps: number[]}|null, error: Error|null, loading: boolean}} ascending, each once
 */
export function useSteps(run) {
  const metrics = useApi(ofRun(run, "metrics"), { names: "reward/mean" });
  const data = metrics.data && { steps: played(metrics.data.rows) };
  return { ...metrics, data };
}

function played({ step = [], "reward/mean": reward = [] }) {
  const steps = step.filter((number, index) => Number.isFinite(number) && Number.isFinite(reward[index]));
  return [...new Set(steps)].sort((a, b) => a - b);
}

/**
 * Two ranges that say most about a course: its first and its last fifth.
 * @param {number[]} steps ascending
 * @returns {[string, string]} such as "0..10"
 */
export function outerRanges(steps) {
  const size = Math.max(1, Math.floor(steps.length / 5));
  const range = (own) => `${own[0]}..${own[own.length - 1]}`;
  return [range(steps.slice(0, size)), range(steps.slice(-size))];
}
