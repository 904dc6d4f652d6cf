/** Timeline model: what an episode's time went to, as bars. Pure. */

/** Rows of the timeline, from the top. */
export const ROWS = ["generation", "waiting", "environment", "tool"];

/**
 * @param {object[]} turns of the trajectory
 * @returns {{bars: {row: string, turn: number, start: number, length: number, label: string}[],
 *   total: number, known: boolean}} seconds after the first start; `known` is false where no start
 *   was recorded, and turns are drawn end to end
 */
export function timelineOf(turns) {
  const starts = turns.map((turn) => turn.started_at).filter((start) => start > 0);
  const known = starts.length > 0;
  const zero = known ? Math.min(...starts) : 0;
  const bars = [];
  let end = 0;
  for (const turn of turns) {
    const start = turn.started_at > 0 ? turn.started_at - zero : end;
    for (const bar of barsOf(turn, start, zero)) {
      bars.push(bar);
      end = Math.max(end, bar.start + bar.length);
    }
  }
  return { bars, total: end, known };
}

function barsOf(turn, start, zero) {
  const timings = turn.timings ?? {};
  const step = timings.step_s ?? 0;
  const stepAt = timings.step_at_s ?? generationOf(timings);
  const wait = timings.wait_s ?? timings.queue_s ?? 0;
  const waitAt = timings.wait_at_s ?? 0;
  const bar = (row, from, length, label) => ({ row, turn: turn.index, start: from, length, label });
  const bars = [];
  if (wait > 0) bars.push(bar("waiting", start + waitAt, wait, "waiting"));
  const queued = waitAt === 0 ? Math.min(wait, stepAt) : 0;
  if (stepAt > queued) bars.push(bar("generation", start + queued, stepAt - queued, "generation"));
  if (step > 0) bars.push(bar("environment", start + stepAt, step, "environment step"));
  let at = start + stepAt;
  for (const { call, result } of turn.calls ?? []) {
    if (!result) continue;
    const from = result.started_at > 0 && zero > 0 ? result.started_at - zero : at;
    const name = call?.name || result.name || "call";
    bars.push(bar("tool", from, result.latency_s ?? 0, result.error ? `${name}: ${result.error}` : name));
    at = from + (result.latency_s ?? 0);
  }
  return bars;
}

/** Seconds of a generation whose end was not recorded: the engine's own measure. */
function generationOf(timings) {
  const parts = ["queue_s", "prefill_s", "decode_s"].map((name) => timings[name] ?? 0);
  const sum = parts.reduce((total, part) => total + part, 0);
  return timings.generate_s ?? timings.request_s ?? timings.server_s ?? sum;
}
