// Page of an export: answers the viewer's requests from the file that it stands in.
(() => {
  const kept = JSON.parse(document.getElementById("agentrl-export").textContent);
  const has = (table, name) => Object.hasOwn(table, name);

  const bytesOf = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

  const unpack = (text) =>
    new Response(new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("gzip")));

  const json = (value, status = 200) =>
    new Response(JSON.stringify(value), { status, headers: { "content-type": "application/json" } });

  const refuse = (error, status = 404) => json({ error }, status);

  const TERM = /^([\w.]+):(?:"((?:[^"\\]|\\.)*)"|(\S+))$/;
  /** What a term of the form name:value holds for; null where the term has another form. */
  const parsed = (term) => {
    const match = TERM.exec(term);
    if (!match) return null;
    const [, name, quoted, word] = match;
    if (/[,*]/.test(word)) return null;
    const value = quoted === undefined ? word : quoted.replace(/\\(.)/g, "$1");
    const [, low, high] = /^(-?[\d.]*)\.\.(-?[\d.]*)$/.exec(word) ?? [];
    return (row) => {
      const own = has(row, name) ? row[name] : undefined;
      if (low !== undefined && typeof own === "number") {
        return (low === "" || own >= Number(low)) && (high === "" || own <= Number(high));
      }
      if (word === "none" || word === "any") {
        const isNone = own === null || own === undefined || own === "" || (Array.isArray(own) && own.length === 0);
        return isNone === (word === "none");
      }
      return Array.isArray(own) ? own.includes(value) : String(own) === value;
    };
  };

  /** The rows that fit a query; null where the query has another form. */
  const rowsOf = async (root, params) => {
    const { rows } = await unpack(kept.answers[`${root}/trajectories`]).json();
    const terms = (params.get("query") ?? "").match(/[^\s"]+"(?:[^"\\]|\\.)*"|\S+/g) ?? [];
    const tests = terms.map(parsed);
    return tests.includes(null) ? null : rows.filter((row) => tests.every((test) => test(row)));
  };

  const refuseQuery = () =>
    refuse("an exported file answers queries of the form name:value alone; `agentrl view` answers all", 400);

  const list = async (root, params) => {
    const found = await rowsOf(root, params);
    if (found === null) return refuseQuery();
    const orders = (params.get("sort") ?? "-step").split(",").map((part) => [part.replace(/^-/, ""), part.startsWith("-") ? -1 : 1]);
    const missing = (value) => value === null || value === undefined;
    const order = (a, b) => {
      for (const [name, sign] of orders) {
        const [one, other] = [a[name], b[name]];
        if (missing(one) || missing(other)) {
          if (missing(one) !== missing(other)) return missing(one) - missing(other);
        } else if (one !== other) return sign * (one < other ? -1 : 1);
      }
      return 0;
    };
    found.sort(order);
    const offset = Number(params.get("offset") ?? 0);
    return json({ total: found.length, rows: found.slice(offset, offset + Number(params.get("limit") ?? 200)) });
  };

  /** How often each value of a field occurs among the rows that fit a query. */
  const facets = async (root, params) => {
    const found = await rowsOf(root, params);
    if (found === null) return refuseQuery();
    const { fields } = await unpack(kept.answers[`${root}/fields`]).json();
    const asked = params.getAll("columns");
    const isCounted = ({ name, kind, counted }) =>
      (kind === "text" || kind === "list") && (asked.length > 0 ? asked.includes(name) : counted);
    const columns = {};
    for (const { name } of fields.filter(isCounted)) {
      const counts = new Map();
      for (const value of found.flatMap((row) => row[name] ?? [])) if (value !== "") counts.set(value, (counts.get(value) ?? 0) + 1);
      columns[name] = [...counts].sort(([, one], [, other]) => other - one);
    }
    return json({ columns, histograms: {} });
  };

  const metrics = async (answer, params) => {
    const { stages, ...rest } = await answer.json();
    const wanted = params.getAll("names");
    const of = ({ series, ...stage }) => {
      const chosen = wanted.filter((name) => has(series, name)).map((name) => [name, series[name]]);
      return { ...stage, series: Object.fromEntries(chosen) };
    };
    return json({ ...rest, stages: stages.map(of) });
  };

  const idsOf = ({ ids }) => new Int32Array(bytesOf(ids.data).buffer);

  /** A group with the tokens of its rollouts. */
  const group = async (answer, root) => {
    const view = await answer.json();
    const tokens = {};
    for (const { id } of view.rows) tokens[id] = await unpack(kept.answers[`${root}/tokens?id=${id}`]).json();
    return json({ ...view, tokens });
  };

  /** The first token at which two trajectories part. */
  const diff = async (root, params) => {
    const names = ["a", "b"].map((side) => `${root}/tokens?id=${params.get(side)}`);
    if (!names.every((name) => has(kept.answers, name))) return refuse("this file does not hold both trajectories");
    const [a, b] = await Promise.all(names.map(async (name) => idsOf(await unpack(kept.answers[name]).json())));
    let token = 0;
    while (token < a.length && a[token] === b[token]) token += 1;
    const equal = token === a.length && token === b.length;
    return json({ first_divergence: equal ? null : { token, id_a: a[token] ?? null, id_b: b[token] ?? null } });
  };

  /** What an answer is kept under. */
  const nameOf = (path, params) => {
    if (path.endsWith("/group")) {
      const asked = ["group_index", "stage", "label"].map((name) => params.get(name) ?? "");
      return `${path}?${JSON.stringify(asked)}`;
    }
    const [[name, id] = [], ...more] = params;
    if (name !== "id" && name !== "task_id") return path;
    // nothing is kept of what is asked for besides, such as a learner of its tokens
    return `${path}?id=${id}${more.map((pair) => `&${pair.join("=")}`).join("")}`;
  };

  // what is not in the file, or takes a server, is not offered
  globalThis.agentrlWithout = new Set([
    "tasks", "behaviour", "blame", "retokenise", "settings", "step", "timeline", "csv", "tags", "learned",
  ]);

  globalThis.fetch = async (resource, options = {}) => {
    const url = new URL(String(resource), "http://export.invalid/");
    if ((options.method ?? "GET") !== "GET") return refuse("an exported file cannot be written", 403);
    const params = url.searchParams;
    const path = decodeURIComponent(url.pathname);
    const root = path.slice(0, path.lastIndexOf("/"));
    if (path.endsWith("/diff")) return diff(root, params);
    if (path.endsWith("/trajectories")) return list(root, params);
    if (path.endsWith("/facets")) return facets(root, params);
    const name = nameOf(path, params);
    if (!has(kept.answers, name)) return refuse("this file was exported without it; `agentrl view` of the run shows it");
    const answer = unpack(kept.answers[name]);
    if (path.endsWith("/metrics")) return metrics(answer, params);
    if (path.endsWith("/group")) return group(answer, root);
    return answer;
  };

  globalThis.EventSource = class {
    static CLOSED = 2;
    readyState = 2;
    addEventListener() {}
    close() {}
  };

  // images lie in the file too
  const source = Object.getOwnPropertyDescriptor(HTMLImageElement.prototype, "src");
  Object.defineProperty(HTMLImageElement.prototype, "src", {
    ...source,
    set(value) {
      source.set.call(this, has(kept.images, value) ? kept.images[value] : value);
    },
  });

  if (!location.hash) history.replaceState(null, "", kept.start);
})();
