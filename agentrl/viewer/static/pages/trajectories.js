/** Trajectories: every episode of a run in one table: query, facets, sort; rows arrive live. */
import { useCallback, useEffect, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { get, ofRun, useApi } from "../lib/api.js";
import { count, duration, line, number, when } from "../lib/format.js";
import { packed, unpacked } from "../lib/curves.js";
import { useLatest } from "../lib/live.js";
import { useKeys } from "../lib/keys.js";
import { go, groupLink, link, taskLink, update } from "../lib/router.js";
import { ColumnChoice } from "../ui/column_choice.js";
import { Drawer, DrawerButton, isNarrow } from "../ui/drawer.js";
import { Facets } from "../ui/facets.js";
import { EndsName, Name } from "../ui/name.js";
import { QueryBox } from "../ui/querybox.js";
import { Empty, Failed } from "../ui/state.js";
import { Table, useBlocks } from "../ui/table.js";
import { rewardClass, statusClass } from "../ui/status.js";

const TRAINING_FIRST = "label,-step"; // then evaluations; of each the newest
const COUNTED = { wait: 5000, after: 1000 }; // to count all costs more, and comes after the rows of every tab

/** The page of the list. Query, order and the active row are in the address. */
export function TrajectoriesPage({ run, params }) {
  const query = params.query ?? "";
  const sort = params.sort ?? TRAINING_FIRST;
  const [found, setFound] = useState({ total: null, error: null });
  const narrow = isNarrow.value;
  const [open, setOpen] = useState(!narrow);
  useEffect(() => setOpen(!narrow), [narrow]);
  const [marked, setMarked] = useState([]);
  const chosen = unpacked(params.columns);
  const load = useCallback(
    (offset, limit, signal) => get(ofRun(run, "trajectories"), { query, sort, offset, limit, columns: chosen }, { signal }),
    [run, query, sort, params.columns],
  );
  const blocks = useBlocks(
    load,
    JSON.stringify([run, query, sort, chosen]),
    ({ total }) => setFound({ total, error: null }),
    (error) => setFound((last) => ({ ...last, error })),
  );
  const fields = useApi(ofRun(run, "fields"));
  const known = fields.data?.fields ?? [];
  const usual = known.filter(({ listed }) => listed).map(({ name }) => name);
  const shown = params.columns ? chosen : usual;
  const show = (names) => update({ columns: names.join("\n") === usual.join("\n") ? "" : packed(names) });
  const columns = shown.map((name) => columnOf(known.find((field) => field.name === name) ?? { name, kind: "text", help: "" }, run));
  for (const column of columns) if (column.name !== "id") column.onRemove = () => show(shown.filter((name) => name !== column.name));
  const facets = useApi(ofRun(run, "facets"), { query, columns: countedOf(known, chosen) });
  useEffect(() => blocks.need(0, 1), [blocks.version]);
  useLatest(run, ["trajectories", "open"], () => blocks.refresh());
  useLatest(run, ["trajectories", "open"], () => facets.reload(), COUNTED);
  useLatest(run, ["step"], () => fields.reload()); // a step may be the first with a number of the run's own
  const active = Number(params.row ?? -1);
  const ask = (text) => update({ query: text, row: "", search: "" }, { replace: false });
  const row = active >= 0 ? blocks.at(active) : undefined;
  const mark = () => row && setMarked(marked.includes(row.id) ? marked.filter((id) => id !== row.id) : [...marked, row.id].slice(-2));
  useKeys("Trajectories", [
    { key: "f", help: "show or hide facets", run: () => setOpen(!open) },
    { key: "G", help: "the row's group", run: () => row && go(groupLink(run, row)) },
    { key: "o", help: "the row's task over training", run: () => row && taskLink(run, row.task) && go(taskLink(run, row.task)) },
    { key: "x", help: "mark the row to compare (two)", run: mark },
    { key: "d", help: "diff of the two marked", run: () => marked.length === 2 && go(diffLink(run, marked)) },
  ]);
  useEffect(() => {
    if (params.search) document.querySelector("[data-search]")?.focus();
  }, [params.search]);
  const isQueryError = found.error?.status === 400;
  return html`
    <div class="page fill list-page">
      <div class="head">
        <h1>Trajectories</h1>
        <span class="muted" role="status">${found.total === null || isQueryError ? "" : `${number(found.total)} found`}</span>
        <div class="end">
          ${marked.length > 0 && html`<span class="muted">${marked.length} of 2 marked</span>`}
          ${marked.length === 2 && html`<a class="button" href=${diffLink(run, marked)}>Diff <kbd>d</kbd></a>`}
          <${ColumnChoice} known=${known.map(({ name }) => name)} onAdd=${(name) => shown.includes(name) || show([...shown, name])} />
          ${narrow
            ? html`<${DrawerButton} isOpen=${open} onClick=${() => setOpen(true)}>Facets <kbd>f</kbd><//>`
            : html`<button class="button" aria-pressed=${open} onClick=${() => setOpen(!open)}>Facets</button>`}
        </div>
      </div>
      <${QueryBox} query=${query} onQuery=${ask} error=${isQueryError ? found.error.message : ""} />
      ${(fields.error ?? (isQueryError ? null : found.error)) && html`<${Failed} error=${fields.error ?? found.error} />`}
      <div class=${open && !narrow ? "list-body with-facets" : "list-body"}>
        <${Drawer} label="Facets" look="list-facets" isOpen=${open} onClose=${() => setOpen(false)}>
          ${facets.data && !isQueryError && html`<${Facets} facets=${facets.data} total=${found.total ?? 0} query=${query} onQuery=${ask} />`}
        <//>
        ${found.total === 0 && !found.error
          ? html`<${Empty}>${query ? "No trajectory fits the query." : "No trajectory has ended yet; rows appear as they do."}<//>`
          : html`<${Table} label="Trajectories" columns=${columns} total=${found.total ?? 0} blocks=${blocks}
              sort=${sort} onSort=${(name) => update({ sort: nextSort(sort, name), row: "" })}
              active=${active} onActive=${(index) => update({ row: index })}
              onOpen=${(opened) => go(link("trajectory", { run, id: opened.id }))}
              isMarked=${({ id }) => marked.includes(id)} />`}
      </div>
    </div>
  `;
}

/** How wide the columns of some fields are; others by their kind. */
const WIDTHS = {
  id: "minmax(120px, 1.6fr)", step: "48px", reward: "66px", status: "98px", task: "minmax(84px, 1fr)", group: "56px",
  source: "minmax(48px, 0.5fr)", stage: "minmax(96px, 1fr)", turns: "50px", tokens: "58px", tool_errors: "84px",
  drop: "minmax(64px, 0.6fr)", tool: "minmax(52px, 0.6fr)", note: "minmax(52px, 0.6fr)",
};
const WIDTH_OF = { integer: "80px", real: "80px", text: "minmax(80px, 0.8fr)", list: "minmax(80px, 0.8fr)", long: "minmax(200px, 2fr)" };

/** What the cells of some fields are; others by their kind. */
const CELLS = {
  id: (row, run) => html`<a href=${link("trajectory", { run, id: row.id })} tabindex="-1"><${EndsName} text=${row.id} /></a>`,
  reward: (row) => html`<span class=${rewardClass(row.reward)}>${number(row.reward)}</span>`,
  status: (row) => html`<span class=${`chip ${statusClass(row.status)}`} title=${row.reason || undefined}>${row.status}</span>`,
  task: (row, run) => html`<a href=${taskLink(run, row.task)} tabindex="-1"><${EndsName} text=${row.task} /></a>`,
  group: (row, run) => html`<a href=${groupLink(run, row)} tabindex="-1">${number(row.group)}</a>`,
  stage: (row) => html`<${EndsName} text=${[row.stage, row.label].filter(Boolean).join(" · ")} />`,
  tokens: (row) => count(row.tokens),
  policy_tokens: (row) => count(row.policy_tokens),
  seconds: (row) => duration(row.seconds),
  ended_at: (row) => html`<span title=${`${when(row.ended_at)}, took ${duration(row.seconds)}`}>${when(row.ended_at).slice(11)}</span>`,
};

/** A field as a column of the table. */
function columnOf({ name, kind, help, unit }, run) {
  const isNumber = kind === "integer" || kind === "real";
  const plain = (row) => {
    const value = row[name];
    if (isNumber) return unit === "epoch s" ? when(value) : number(value);
    return html`<${Name} text=${Array.isArray(value) ? value.join(", ") : (value ?? "–")} limit=${kind === "long" ? 300 : 60} />`;
  };
  return {
    name,
    title: line(name, 60),
    help: unit && unit !== "epoch s" ? `${help} In ${unit}.` : help,
    width: WIDTHS[name] ?? (unit === "epoch s" && !CELLS[name] ? "140px" : WIDTH_OF[kind]),
    number: isNumber,
    sortable: kind !== "long",
    cell: (row) => (CELLS[name] ? CELLS[name](row, run) : plain(row)),
  };
}

/** The fields that facets count: the usual ones, and chosen ones besides. */
function countedOf(known, chosen) {
  const more = known.filter(({ name, kind, counted, listed }) => counted || (chosen.includes(name) && !listed && kind !== "long"));
  return chosen.length > 0 ? more.map(({ name }) => name) : [];
}

/** Another click on a column turns its order; numbers begin with the greatest. */
function nextSort(sort, name) {
  return sort === `-${name}` ? name : `-${name}`;
}

function diffLink(run, [a, b]) {
  return link("diff", { run, a, b });
}
