/** Drawer: what stands beside a page; on a narrow screen it lies over it, until it is closed. */
import { html } from "../lib/html.js";
import { signal } from "../vendor/signals.js";

const query = globalThis.matchMedia?.("(max-width: 720px)"); // as in app.css

/** Whether the screen has no room for what stands beside a page. */
export const isNarrow = signal(query?.matches ?? false);

query?.addEventListener("change", () => (isNarrow.value = query.matches));

// before its content measures itself, and closed before it leaves, so that the focus goes back
const show = (dialog) => {
  dialog?.showModal();
  return () => dialog?.close();
};

/**
 * @param {object} props
 * @param {string} props.label
 * @param {string} props.look CSS class of what stands beside the page
 * @param {boolean} props.isOpen
 * @param {() => void} props.onClose by Escape, its button, or a click beside it
 * @param {unknown} props.children
 */
export function Drawer({ label, look, isOpen, onClose, children }) {
  if (!isOpen) return null;
  if (!isNarrow.value) return html`<div class=${look}>${children}</div>`;
  const beside = (event) => event.target === event.currentTarget && onClose();
  return html`<dialog class=${`drawer ${look}`} ref=${show} aria-label=${label} onClose=${onClose} onClick=${beside}>
    <div class="head">
      <h2>${label}</h2>
      <div class="end"><button type="button" class="button" onClick=${onClose}>Close</button></div>
    </div>
    ${children}
  </dialog>`;
}

/** The button that opens a drawer. */
export function DrawerButton({ isOpen, onClick, children }) {
  return html`<button type="button" class="button" aria-haspopup="dialog" aria-expanded=${isOpen} onClick=${onClick}>${children}</button>`;
}
