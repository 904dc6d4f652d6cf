/** Help: the list of the keys that work now. */
import { html } from "../lib/html.js";
import { useEffect, useRef } from "../vendor/hooks.js";
import { bound } from "../lib/keys.js";

const SHOWN = new Map([
  [" ", "space"],
  ["ArrowUp", "↑"],
  ["ArrowDown", "↓"],
  ["ArrowLeft", "←"],
  ["ArrowRight", "→"],
  ["Escape", "esc"],
  ["Enter", "enter"],
]);

/** A modal list of keys. `onClose` is called when it is closed in any way. */
export function Help({ onClose }) {
  const dialog = useRef(null);
  useEffect(() => {
    dialog.current.showModal();
  }, []);
  return html`
    <dialog ref=${dialog} onClose=${onClose} aria-labelledby="help-title">
      <div class="head">
        <h1 id="help-title">Keys</h1>
        <div class="end">
          <button class="button" onClick=${() => dialog.current.close()}>Close</button>
        </div>
      </div>
      <div class="keys-list">
        ${grouped().map(
          ([scope, bindings]) => html`
            <section key=${scope}>
              <h3>${scope}</h3>
              <dl>
                ${bindings.map(
                  ({ key, help }) => html`<dt key=${key}>${keyNames(key)}</dt><dd>${help}</dd>`,
                )}
              </dl>
            </section>
          `,
        )}
      </div>
    </dialog>
  `;
}

function keyNames(key) {
  const parts = key === " " ? [" "] : key.split(" ");
  return parts.map((part, index) => html`${index > 0 && " "}<kbd>${SHOWN.get(part) ?? part}</kbd>`);
}

/** Bindings by scope, the newest scope first, a key once. */
function grouped() {
  const scopes = new Map();
  const seen = new Set();
  for (const { scope, bindings } of [...bound.value].reverse()) {
    const listed = scopes.get(scope) ?? [];
    for (const binding of bindings) {
      if (!binding.help || seen.has(binding.key)) continue;
      seen.add(binding.key);
      listed.push(binding);
    }
    scopes.set(scope, listed);
  }
  return [...scopes].filter(([, bindings]) => bindings.length > 0);
}
