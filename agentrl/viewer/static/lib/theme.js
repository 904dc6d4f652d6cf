/** Theme: light or dark, by the system or as chosen; `data-theme` of the document holds it. */
import { signal } from "../vendor/signals.js";

const KEY = "agentrl-theme";
const system = globalThis.matchMedia?.("(prefers-color-scheme: dark)");

/** "light" or "dark", as shown. */
export const theme = signal(document.documentElement.dataset.theme ?? "light");

/** The other theme, kept for the next visit. */
export function toggle() {
  show(theme.peek() === "dark" ? "light" : "dark");
  try {
    localStorage.setItem(KEY, theme.peek());
  } catch {
    // storage may be closed to this page: the choice holds until it is left
  }
}

/** Follows the system's theme while none was chosen; called once by the application. */
export function listen() {
  system?.addEventListener("change", () => {
    let chosen = null;
    try {
      chosen = localStorage.getItem(KEY);
    } catch {
      // as above
    }
    if (!chosen) show(system.matches ? "dark" : "light");
  });
}

/**
 * The value of a CSS variable now, for what draws on a canvas.
 * @param {string} name such as "--accent"
 */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function show(name) {
  document.documentElement.dataset.theme = name;
  theme.value = name;
}
