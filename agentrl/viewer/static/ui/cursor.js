/** Cursor: the active row of a list, moved by j and k or the arrows, opened by Enter. */
import { useEffect, useState } from "../vendor/hooks.js";
import { useKeys } from "../lib/keys.js";

/**
 * @param {object} list
 * @param {string} list.scope heading in the list of keys
 * @param {number} list.count rows
 * @param {(index: number) => void} list.onOpen
 * @param {Array} [list.more] further bindings; their `run` gets the active index, -1 where none
 * @param {string} [list.noun] what a row is
 * @returns {[number, (index: number) => void]} the active row, -1 before any, and its setter
 */
export function useCursor({ scope, count, onOpen, more = [], noun = "row" }) {
  const [active, setActive] = useState(-1);
  const at = Math.min(active, count - 1);
  const move = (by) => setActive(Math.max(0, Math.min(count - 1, at + by)));
  useKeys(scope, [
    { key: "j", help: `next ${noun}`, run: () => move(1) },
    { key: "k", help: `previous ${noun}`, run: () => move(at < 0 ? 1 : -1) },
    { key: "ArrowDown", help: "", run: () => move(1) },
    { key: "ArrowUp", help: "", run: () => move(at < 0 ? 1 : -1) },
    { key: "Enter", help: `open the ${noun}`, run: () => at >= 0 && onOpen(at) },
    ...more.map((binding) => ({ ...binding, run: () => binding.run(at) })),
  ]);
  useEffect(() => {
    document.querySelector("[data-active=true]")?.scrollIntoView({ block: "nearest" });
  }, [at]);
  return [at, setActive];
}
