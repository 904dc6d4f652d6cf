/** Keys: one registry of shortcuts; `?` lists what is bound now. The last one bound wins. */
import { signal } from "../vendor/signals.js";
import { useLayoutEffect, useRef } from "../vendor/hooks.js";

/**
 * @typedef {object} Binding
 * @property {string} key as `KeyboardEvent.key` names it, or two with a space: "g r"
 * @property {string} help what it does, for the list; "" is not listed
 * @property {(event: KeyboardEvent) => void} run
 * @property {boolean} [typing] whether it works inside a text field too
 */

/** What is bound now: `[{scope, bindings}]`, oldest first. */
export const bound = signal([]);

const WAIT_MS = 1500; // between the two keys of a sequence
let pending = { key: "", until: 0 };

/**
 * Binds keys until the returned function is called.
 * @param {string} scope heading in the list of keys
 * @param {Binding[]} bindings
 * @returns {() => void}
 */
export function bind(scope, bindings) {
  const entry = { scope, bindings };
  bound.value = [...bound.peek(), entry];
  return () => {
    bound.value = bound.peek().filter((other) => other !== entry);
  };
}

/**
 * Binds keys while a component is shown. The actions of the newest rendering run.
 * @param {string} scope
 * @param {Binding[]} bindings
 */
export function useKeys(scope, bindings) {
  const newest = useRef(bindings);
  newest.current = bindings;
  const names = bindings.map(({ key, help }) => `${key}\u0000${help}`).join("\u0001");
  useLayoutEffect(() => { // before the first paint: what is seen answers to its keys
    const forwarded = newest.current.map((binding, index) => ({
      ...binding,
      run: (event) => newest.current[index].run(event),
    }));
    return bind(scope, forwarded);
  }, [scope, names]);
}

/** Follows the keyboard; called once by the application. */
export function listen() {
  addEventListener("keydown", onKey);
}

function onKey(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.isComposing || document.querySelector("dialog:modal")) return; // a dialog has its own
  const typing = isTyping(event.target);
  const now = performance.now();
  const sequence = pending.key && now < pending.until ? `${pending.key} ${event.key}` : "";
  pending = { key: "", until: 0 };
  const binding = (sequence && lookUp(sequence, typing)) || lookUp(event.key, typing);
  if (binding) {
    if (isOwnKey(event)) return;
    event.preventDefault();
    binding.run(event);
  } else if (!typing && startsSequence(event.key)) {
    pending = { key: event.key, until: now + WAIT_MS };
  }
}

function lookUp(key, typing) {
  const all = bound.peek();
  for (let i = all.length - 1; i >= 0; i -= 1) {
    const found = all[i].bindings.find((one) => one.key === key && (!typing || one.typing));
    if (found) return found;
  }
  return undefined;
}

function startsSequence(key) {
  return bound.peek().some(({ bindings }) => bindings.some((one) => one.key.startsWith(`${key} `)));
}

/** Enter and space belong to a focused control; arrows to a list or slider. */
function isOwnKey(event) {
  const control = event.target?.closest?.("button, a[href], select, input, summary, [role=option]");
  if (!control) return false;
  if (event.key === "Enter" || event.key === " ") return true;
  const moves = event.key.startsWith("Arrow") || event.key === "Home" || event.key === "End";
  return moves && control.matches("select, input");
}

function isTyping(target) {
  if (!target?.closest) return false;
  const field = target.closest("input, textarea, select, [contenteditable]");
  if (!field) return false;
  return !["checkbox", "radio", "button", "range"].includes(field.type);
}
