/** Status: the class of colour that goes with a trajectory's end and with its reward. */

const STATUSES = new Map([
  ["terminated", "good"],
  ["truncated", "warn"],
  ["failed", "bad"],
  ["cancelled", ""],
]);

/** "good", "warn", "bad" or "". */
export function statusClass(status) {
  return STATUSES.get(status) ?? "";
}

/** A reward above 0 is good, one below it bad, none is nothing. */
export function rewardClass(reward) {
  if (reward === null || reward === undefined || reward === 0) return "muted";
  return reward > 0 ? "good" : "bad";
}
