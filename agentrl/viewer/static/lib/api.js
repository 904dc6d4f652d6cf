/**
 * API: asks the server, and follows a run by server-sent events.
 *
 * A server that does not answer is one state of the whole page (`connection`): it is asked again
 * until it answers, then `revived` counts up and whoever shows data loads it anew.
 */
import { signal } from "../vendor/signals.js";
import { useCallback, useEffect, useRef, useState } from "../vendor/hooks.js";

/** "ok" or "lost". */
export const connection = signal("ok");

/** Counts how often a lost server came back. */
export const revived = signal(0);

/** What the server refused, in its own words; `status` is 0 where it did not answer. */
export class ApiError extends Error {
  /**
   * @param {string} sentence
   * @param {number} status
   */
  constructor(sentence, status) {
    super(sentence);
    this.name = "ApiError";
    this.status = status;
  }
}

/**
 * The path of something of a run.
 * @param {string} run the run's key
 * @param {string} [rest] such as "trajectories"
 */
export function ofRun(run, rest = "") {
  return `/api/runs/${encodeURIComponent(run)}${rest && "/"}${rest}`;
}

/**
 * Asks for JSON.
 * @param {string} path as docs name it: `/api/runs`
 * @param {Record<string, unknown>} [params] the query; null, undefined and "" are left out, a list is several
 * @param {{signal?: AbortSignal, parse?: (text: string) => any}} [options] `parse` reads the answer, JSON.parse by default
 * @returns {Promise<any>}
 * @throws {ApiError}
 */
export function get(path, params = {}, options = {}) {
  return ask("GET", path, params, undefined, options);
}

/** Sends JSON; otherwise as `get`. */
export function post(path, body, options = {}) {
  return ask("POST", path, {}, body, options);
}

/** Deletes; otherwise as `get`. */
export function del(path, options = {}) {
  return ask("DELETE", path, {}, undefined, options);
}

async function ask(method, path, params, body, { signal: abort, parse = JSON.parse } = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") query.append(key, String(one));
    }
  }
  const url = query.size > 0 ? `${path}?${query}` : path;
  const headers = { accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(url, {
      method,
      headers,
      signal: abort,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
    });
  } catch (error) {
    if (abort?.aborted) throw error;
    lose();
    throw new ApiError("The server does not answer.", 0);
  }
  if (connection.peek() === "lost") find();
  return answered(response, method, path, parse);
}

async function answered(response, method, path, parse) {
  if (response.ok) return response.status === 204 ? null : parse(await response.text());
  let sentence = `${method} ${path} failed with ${response.status}`;
  try {
    const answer = await response.json();
    const said = answer.error ?? answer.detail;
    if (said) sentence = typeof said === "string" ? said : JSON.stringify(said);
  } catch {
    // no JSON: a proxy answered, whose status is all there is to say
  }
  throw new ApiError(sentence, response.status);
}

let probing = 0;

function lose() {
  if (connection.peek() === "lost") return;
  connection.value = "lost";
  probe(1000);
}

function find() {
  connection.value = "ok";
  revived.value += 1;
}

function probe(wait) {
  clearTimeout(probing);
  probing = setTimeout(async () => {
    try {
      await fetch("/api/runs", { credentials: "same-origin" });
      if (connection.peek() === "lost") find();
    } catch {
      probe(Math.min(wait * 1.5, 10_000));
    }
  }, wait);
}

/**
 * What a component shows of a path: loads it, loads it again when the path, the query or the
 * connection changes, and keeps the last answer meanwhile.
 * @param {string} path "" loads nothing
 * @param {Record<string, unknown>} [params]
 * @returns {{data: any, error: ApiError|null, loading: boolean, reload: () => void}}
 */
export function useApi(path, params = {}) {
  const key = JSON.stringify([path, params]);
  const [state, setState] = useState({ key: "", data: null, error: null });
  const [count, setCount] = useState(0);
  const shown = useRef(key);
  shown.current = key;
  const times = revived.value;
  useEffect(() => {
    if (!path) return undefined;
    const abort = new AbortController();
    get(path, params, { signal: abort.signal }).then(
      (data) => setState({ key, data, error: null }),
      (error) => {
        if (abort.signal.aborted) return;
        setState((last) => ({ key, data: last.key === key ? last.data : null, error }));
      },
    );
    return () => abort.abort();
  }, [key, count, times]);
  const reload = useCallback(() => setCount((value) => value + 1), []);
  const loading = Boolean(path) && state.key !== key;
  return { data: state.data, error: loading ? null : state.error, loading, reload };
}

/** The kinds of events that a server sends of a run. */
export const EVENTS = ["trajectories", "step", "state", "alert"];

/**
 * Follows a run's events. All tabs of one run share one connection, since a browser has only six
 * to a server: the tab that holds the lock has it and passes on what comes.
 * @param {string} run the run's key
 * @param {Record<string, (data: any) => void>} handlers by kind; `open` when the connection stands,
 *   also after a break: what was missed is to be asked for
 * @returns {() => void} ends it
 */
export function follow(run, handlers) {
  const name = `agentrl-events:${run}`;
  const stop = new AbortController();
  const channel = new BroadcastChannel(name);
  const deliver = ({ kind, data }) => {
    if (!stop.signal.aborted) handlers[kind]?.(data);
  };
  channel.onmessage = (message) => deliver(message.data);
  const lead = () => {
    if (stop.signal.aborted) return undefined;
    return connected(run, stop.signal, (event) => {
      deliver(event);
      channel.postMessage(event);
    });
  };
  if (navigator.locks) {
    navigator.locks.request(name, { signal: stop.signal }, lead).catch((error) => {
      if (error.name !== "AbortError") throw error;
    });
  } else {
    lead(); // no secure context: each tab has its own connection
  }
  return () => {
    stop.abort();
    channel.close();
  };
}

/** Holds a connection, made again when it breaks, until `stop`. */
function connected(run, stop, deliver) {
  return new Promise((resolve) => {
    let source = null;
    let timer = 0;
    let wait = 1000;
    const open = () => {
      source = new EventSource(ofRun(run, "events"));
      source.onopen = () => {
        wait = 1000;
        deliver({ kind: "open", data: null });
      };
      source.onerror = () => {
        if (source.readyState !== EventSource.CLOSED) return; // the browser tries again itself
        timer = setTimeout(open, wait);
        wait = Math.min(wait * 2, 30_000);
      };
      for (const kind of EVENTS) {
        source.addEventListener(kind, (event) => deliver({ kind, data: JSON.parse(event.data) }));
      }
    };
    open();
    stop.addEventListener("abort", () => {
      clearTimeout(timer);
      source.close();
      resolve();
    });
  });
}
