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
 * Calls `act` when events of these kinds came, at most once in `wait` milliseconds.
 * @param {string} run the run's key
 * @param {string[]} kinds of `follow`
 * @param {(data: any) => void} act
 * @param {number} [wait]
 */
export function useLatest(run, kinds, act, wait = 1000) {
  const newest = useRef(act);
  newest.current = act;
  const names = kinds.join(" ");
  useEffect(() => {
    let timer = 0;
    let last = 0;
    let seen = latest.peek().count;
    const unsubscribe = latest.subscribe((event) => {
      if (event.count === seen || event.run !== run || !names.split(" ").includes(event.kind)) return;
      seen = event.count;
      clearTimeout(timer);
      const left = Math.max(0, last + wait - Date.now());
      timer = setTimeout(() => {
        last = Date.now();
        newest.current(event.data);
      }, left);
    });
    return () => {
      clearTimeout(timer);
      unsubscribe();
    };
  }, [run, names, wait]);
}
