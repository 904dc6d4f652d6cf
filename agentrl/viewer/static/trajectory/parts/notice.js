/** Notice: what is missing, why, and which setting brings it; and what failed. */
import { html } from "../../lib/html.js";
import { showUnseen } from "../../lib/unseen.js";

/** Why a trajectory has no tokens. */
export const NO_TOKENS =
  "No token is recorded: its engine gave none. An engine that gives ids, as torch and sglang do, brings them.";

/** @param {{error: Error, onRetry?: () => void}} props */
export function Failure({ error, onRetry }) {
  return html`<div class="notice bad" role="alert">
    ${showUnseen(error.message)}
    ${onRetry && html`<button type="button" class="quiet" onClick=${onRetry}>try again</button>`}
  </div>`;
}

/** @param {{missing: Record<string, string> | Map<string, string>, only?: string[]}} props */
export function Missing({ missing, only }) {
  const groups = new Map(); // why -> names
  for (const [name, why] of missing instanceof Map ? missing : Object.entries(missing ?? {})) {
    if (!only || only.includes(name)) groups.set(String(why), [...(groups.get(String(why)) ?? []), name]);
  }
  if (!groups.size) return null;
  return html`<ul class="missing" aria-label="Not recorded">
    ${[...groups].map(
      ([why, names]) => html`<li key=${why}><b>${names.join(", ")}</b>: ${showUnseen(why)}</li>`,
    )}
  </ul>`;
}

/**
 * That there is nothing, why, and what would bring it.
 * @param {{children: unknown, missing?: object, only?: string[]}} props the last two of `Missing`
 */
export function Empty({ children, missing = {}, only }) {
  return html`<div class="pad">
    <p class="muted">${children}</p>
    <${Missing} missing=${missing} only=${only} />
  </div>`;
}
