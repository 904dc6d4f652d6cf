/** Target: turns a link as the server sends it, `{page, ...}`, into an address of the viewer. */
import { PAGES, link } from "../lib/router.js";

/**
 * @param {string} run the run's key
 * @param {{page: string}|null|undefined} target
 * @returns {string|null} null where it names no page of ours
 */
export function linkOf(run, target) {
  if (!target || !PAGES.includes(target.page)) return null;
  const { page, ...params } = target;
  return link(page, { run, ...params });
}
