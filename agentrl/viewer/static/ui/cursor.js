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
 * @param {(index: number) => string} [list.keyOf] of a list whose rows come and go: what tells them apart
 * @returns {[number, (index: number) => void]} the active row, -1 before any, and its setter
 */
export function useCursor({ scope, count, onOpen, more = [], noun = "row", keyOf = String }) {
  const [key, setKey] = useState(null);
  const at = key === null ? -1 : placeOf(key, count, keyOf);
  const setActive = (index) => setKey(index < 0 || index >= count ? null : keyOf(index));
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
  }, [key]); // not with its place, which other rows change too
  return [at, setActive];
}

/** The index of the row with the key; -1 where it is gone. */
function placeOf(key, count, keyOf) {
  for (let index = 0; index < count; index += 1) if (keyOf(index) === key) return index;
  return -1;
}
