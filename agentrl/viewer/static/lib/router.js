/** Router: the page and its state live in the URL's fragment, so that every state is a link. */
import { signal } from "../vendor/signals.js";

/**
 * @typedef {object} Route
 * @property {string} page one of PAGES, or "unknown"
 * @property {string} run the run's key, "" where the page has none
 * @property {string} id trajectory, step, group or task, "" where the page has none
 * @property {Record<string, string>} params the query; an object without a prototype
 * @property {string} href
 */

/** Pages of a run, each with whether its path names a thing. */
const RUN_PAGES = new Map([
  ["overview", false],
  ["metrics", false],
  ["timeline", false],
  ["settings", false],
  ["trajectories", false],
  ["trajectory", true],
  ["step", true],
  ["group", true],
  ["tasks", false],
  ["task", true],
  ["diff", false],
  ["behaviour", false],
  ["blame", false],
]);

/** Every page by name. */
export const PAGES = ["runs", "compare", ...RUN_PAGES.keys()];

/** Whether a page or a tab is there: an exported file lacks some. */
export function offers(name) {
  return !globalThis.agentrlWithout?.has(name);
}

/**
 * The route that a fragment names.
 * @param {string} hash such as `#/run/KEY/trajectory/ID?tab=tokens`
 * @returns {Route}
 */
export function parse(hash) {
  const [path, query = ""] = split(hash.replace(/^#/, ""), "?");
  const params = Object.create(null);
  for (const [key, value] of new URLSearchParams(query)) params[key] = value;
  const parts = path.split("/").filter(Boolean).map(decoded);
  const found = place(parts);
  return { page: "unknown", run: "", id: "", ...found, params, href: hash || "#/" };
}

function place(parts) {
  if (parts.length === 0) return { page: "runs" };
  if (parts[0] === "compare" && parts.length === 1) return { page: "compare" };
  if (parts[0] !== "run" || parts.length < 2) return {};
  const [, run, page = "overview", ...rest] = parts;
  if (!RUN_PAGES.has(page)) return {};
  if (RUN_PAGES.get(page)) return rest.length > 0 ? { page, run, id: rest.join("/") } : {};
  return rest.length === 0 ? { page, run } : {};
}

/**
 * The address of a page.
 * @param {string} page one of PAGES
 * @param {Record<string, unknown>} [params] `run` and `id` go into the path, the rest into the
 *   query; null, undefined and "" are left out
 * @returns {string}
 */
export function link(page, params = {}) {
  const { run = "", id = "", ...rest } = params;
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(rest)) {
    if (value !== null && value !== undefined && value !== "") query.set(key, String(value));
  }
  const text = query.toString();
  return `#${path(page, String(run), String(id))}${text && "?"}${text}`;
}

function path(page, run, id) {
  if (page === "runs") return "/";
  if (page === "compare") return "/compare";
  if (!RUN_PAGES.has(page)) throw new RangeError(`no page ${page}; pages: ${PAGES.join(", ")}`);
  const base = `/run/${encodeURIComponent(run)}`;
  if (page === "overview") return base;
  return `${base}/${page}${RUN_PAGES.get(page) ? `/${encodeURIComponent(id)}` : ""}`;
}

const LONGEST_ID = 1000; // characters; the server's queries hold no longer word

/** The address of a task's page; null where its id is longer than an address should be. */
export function taskLink(run, id) {
  return id && id.length <= LONGEST_ID ? link("task", { run, id }) : null;
}

/** The address of the group of a trajectory of the index. An evaluation counts its groups from 0, as training does. */
export function groupLink(run, { group: id, stage, label }) {
  return link("group", { run, id, stage, label });
}

/** The route shown now. */
export const route = signal(parse(globalThis.location?.hash ?? ""));

let followed = globalThis.location?.hash ?? ""; // the address that `route` was read from

function follow() {
  followed = location.hash;
  route.value = parse(followed);
}

/** The page at which the viewer was opened. */
export const landing = route.peek().page;

/**
 * Goes to an address. Where the browser was sent to another one that is not followed yet, a replacement is dropped:
 * it was meant for the page that is being left.
 * @param {string} href from `link`
 * @param {{replace?: boolean}} [options] replace: without a new entry in the browser's history
 */
export function go(href, { replace = false } = {}) {
  if (href === location.hash) return;
  if (replace) {
    if (location.hash !== followed) return;
    history.replaceState(null, "", href);
    follow();
  } else {
    location.hash = href;
  }
}

/**
 * Changes parts of the query and stays on the page. Where the browser was sent to another address that is not followed
 * yet, nothing changes: the wish was for the page that is being left.
 * @param {Record<string, unknown>} changes
 * @param {{replace?: boolean}} [options]
 */
export function update(changes, { replace = true } = {}) {
  if (location.hash !== followed) return;
  const { page, run, id, params } = route.peek();
  go(link(page, { ...params, ...changes, run, id }), { replace });
}

/** Follows the browser's address; called once by the application. */
export function listen() {
  addEventListener("hashchange", follow);
}

function split(text, at) {
  const index = text.indexOf(at);
  return index < 0 ? [text] : [text.slice(0, index), text.slice(index + 1)];
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a stray % is itself
  }
}
