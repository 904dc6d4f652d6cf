/** State: what stands where data is on its way, missing, or refused. */
import { html } from "../lib/html.js";

/**
 * Shows `children(data)` once there is data; before it `waiting`, instead of it what was refused.
 * @param {{of: {data: any, error: Error|null, loading: boolean}, waiting?: any, children: (data: any) => any}} props
 */
export function Loaded({ of, waiting, children }) {
  if (of.data !== null) {
    const told = of.error && of.error.status !== 0; // a lost server is the banner's to tell
    return html`${told && html`<${Failed} error=${of.error} />`}${children(of.data)}`;
  }
  if (of.error) return html`<${Failed} error=${of.error} />`;
  return waiting ?? html`<p class="empty" role="status">Loading…</p>`;
}

/** An error, in its own words. */
export function Failed({ error }) {
  return html`<div class="failed" role="alert">${error.message}</div>`;
}

/** That there is nothing, and what would bring something. */
export function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}
