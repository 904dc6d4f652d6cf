/** Live: what a run's events said last, for whoever shows that run. */
import { signal } from "../vendor/signals.js";
import { useEffect, useRef } from "../vendor/hooks.js";
import { follow } from "./api.js";

const KINDS = ["open", "trajectories", "step", "state", "alert"];

/** The last event: `{run, kind, data, count}`; `count` grows with each. */
export const latest = signal({ run: "", kind: "", data: null, count: 0 });

/** Follows a run while the application shows it; called by the frame alone. */
export function useRunEvents(run) {
  useEffect(() => {
    if (!run) return undefined;
    const tell = (kind) => (data) => {
      latest.value = { run, kind, data, count: latest.peek().count + 1 };
    };
    return follow(run, Object.fromEntries(KINDS.map((kind) => [kind, tell(kind)])));
  }, [run]);
}

/**
 * Calls `act` with the newest of these kinds of events, at most once in `wait` milliseconds.
 * @param {string} run the run's key
 * @param {string[]} kinds of `follow`
 * @param {(data: any) => void} act
 * @param {{wait?: number, after?: number}} [pace] `after`: milliseconds from an event to `act` at least
 */
export function useLatest(run, kinds, act, { wait = 1000, after = 0 } = {}) {
  const newest = useRef(act);
  newest.current = act;
  const names = kinds.join(" ");
  useEffect(() => {
    let timer = 0;
    let last = 0;
    let seen = latest.peek().count;
    let data = null;
    const unsubscribe = latest.subscribe((event) => {
      if (event.count === seen || event.run !== run || !names.split(" ").includes(event.kind)) return;
      seen = event.count;
      data = event.data;
      timer ||= setTimeout(() => {
        timer = 0;
        last = Date.now();
        newest.current(data);
      }, Math.max(after, last + wait - Date.now()));
    });
    return () => {
      clearTimeout(timer);
      unsubscribe();
    };
  }, [run, names, wait, after]);
}
