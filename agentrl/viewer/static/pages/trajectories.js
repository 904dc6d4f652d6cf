/** Trajectories: every episode of a run in one table: query, facets, sort; rows arrive live. */
import { useCallback, useEffect, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { get, ofRun, useApi } from "../lib/api.js";
import { count, duration, number, when } from "../lib/format.js";
import { useLatest } from "../lib/live.js";
import { useKeys } from "../lib/keys.js";
import { go, link, taskLink, update } from "../lib/router.js";
import { Drawer, DrawerButton, isNarrow } from "../ui/drawer.js";
import { Facets } from "../ui/facets.js";
import { EndsName, Name } from "../ui/name.js";
import { QueryBox } from "../ui/querybox.js";
import { Empty, Failed } from "../ui/state.js";
import { Table, useBlocks } from "../ui/table.js";
import { rewardClass, statusClass } from "../ui/status.js";

const NEWEST_FIRST = "-step";
const COUNTED = { wait: 5000, after: 1000 }; // to count all costs more, and comes after the rows of every tab

/** The page of the list. Query, order and the active row are in the address. */
export function TrajectoriesPage({ run, params }) {
  const query = params.query ?? "";
  const sort = params.sort ?? NEWEST_FIRST;
  const [found, setFound] = useState({ total: null, error: null });
  const narrow = isNarrow.value;
  const [open, setOpen] = useState(!narrow);
  useEffect(() => setOpen(!narrow), [narrow]);
  const [marked, setMarked] = useState([]);
  const load = useCallback(
    (offset, limit, signal) => get(ofRun(run, "trajectories"), { query, sort, offset, limit }, { signal }),
    [run, query, sort],
  );
  const blocks = useBlocks(
    load,
    JSON.stringify([run, query, sort]),
    ({ total }) => setFound({ total, error: null }),
    (error) => setFound((last) => ({ ...last, error })),
  );
  const facets = useApi(ofRun(run, "facets"), { query });
  useEffect(() => blocks.need(0, 1), [blocks.version]);
  useLatest(run, ["trajectories", "open"], () => blocks.refresh());
  useLatest(run, ["trajectories", "open"], () => facets.reload(), COUNTED);
  const active = Number(params.row ?? -1);
  const ask = (text) => update({ query: text, row: "", search: "" }, { replace: false });
  const row = active >= 0 ? blocks.at(active) : undefined;
  const mark = () => row && setMarked(marked.includes(row.id) ? marked.filter((id) => id !== row.id) : [...marked, row.id].slice(-2));
  useKeys("Trajectories", [
    { key: "f", help: "show or hide facets", run: () => setOpen(!open) },
    { key: "G", help: "the row's group", run: () => row && go(groupLink(run, row)) },
    { key: "o", help: "the row's task over training", run: () => row && taskLink(run, row.task_id) && go(taskLink(run, row.task_id)) },
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
          ${narrow
            ? html`<${DrawerButton} isOpen=${open} onClick=${() => setOpen(true)}>Facets <kbd>f</kbd><//>`
            : html`<button class="button" aria-pressed=${open} onClick=${() => setOpen(!open)}>Facets</button>`}
        </div>
      </div>
      <${QueryBox} query=${query} onQuery=${ask} error=${isQueryError ? found.error.message : ""} />
      ${found.error && !isQueryError && html`<${Failed} error=${found.error} />`}
      <div class=${open && !narrow ? "list-body with-facets" : "list-body"}>
        <${Drawer} label="Facets" look="list-facets" isOpen=${open} onClose=${() => setOpen(false)}>
          ${facets.data && !isQueryError && html`<${Facets} facets=${facets.data} query=${query} onQuery=${ask} />`}
        <//>
        ${found.total === 0 && !found.error
          ? html`<${Empty}>${query ? "No trajectory fits the query." : "No trajectory has ended yet; rows appear as they do."}<//>`
          : html`<${Table} label="Trajectories" columns=${columnsOf(run)} total=${found.total ?? 0} blocks=${blocks}
              sort=${sort} onSort=${(name) => update({ sort: nextSort(sort, name), row: "" })}
              active=${active} onActive=${(index) => update({ row: index })}
              onOpen=${(opened) => go(link("trajectory", { run, id: opened.id }))}
              isMarked=${({ id }) => marked.includes(id)} />`}
      </div>
    </div>
  `;
}

function columnsOf(run) {
  const text = (name, title, width, limit = 60) => ({
    name, title, width, sortable: true,
    cell: (row) => html`<${Name} text=${row[name]} limit=${limit} />`,
  });
  const amount = (name, title, width, show = number) => ({
    name, title, width, number: true, sortable: true, cell: (row) => show(row[name]),
  });
  return [
    { name: "id", title: "Trajectory", width: "minmax(120px, 1.6fr)", sortable: true,
      cell: (row) => html`<a href=${link("trajectory", { run, id: row.id })} tabindex="-1"><${EndsName} text=${row.id} /></a>` },
    amount("step", "Step", "48px"),
    { name: "reward", title: "Reward", width: "66px", number: true, sortable: true,
      cell: (row) => html`<span class=${rewardClass(row.reward)}>${number(row.reward)}</span>` },
    { name: "status", title: "Status", width: "98px", sortable: true,
      cell: (row) => html`<span class=${`chip ${statusClass(row.status)}`} title=${row.status_reason || undefined}>${row.status}</span>` },
    { name: "task_id", title: "Task", width: "minmax(84px, 1fr)", sortable: true,
      cell: (row) => html`<a href=${taskLink(run, row.task_id)} tabindex="-1"><${EndsName} text=${row.task_id} /></a>` },
    { name: "group_index", title: "Group", width: "56px", number: true, sortable: true,
      cell: (row) => html`<a href=${groupLink(run, row)} tabindex="-1">${number(row.group_index)}</a>` },
    text("data_source", "Data", "minmax(48px, 0.5fr)"),
    { name: "stage", title: "Stage", width: "minmax(96px, 1fr)", sortable: true,
      cell: (row) => html`<${EndsName} text=${[row.stage, row.label].filter(Boolean).join(" · ")} />` },
    amount("num_turns", "Turns", "50px"),
    amount("num_tokens", "Tokens", "58px", count),
    amount("num_tool_errors", "Errors", "54px"),
    { name: "drop_reason", title: "Dropped", width: "minmax(64px, 0.6fr)", sortable: true,
      help: "why the group was not trained",
      cell: (row) => html`<${Name} text=${row.drop_reason} limit=${40} />` },
    { name: "tools", title: "Tools", width: "minmax(52px, 0.6fr)",
      cell: (row) => html`<${Name} text=${(row.tools ?? []).join(", ")} limit=${60} />` },
    { name: "ended_at", title: "Ended", width: "66px", number: true, sortable: true,
      cell: (row) => html`<span title=${`${when(row.ended_at)}, took ${duration(row.ended_at - row.started_at)}`}>${when(row.ended_at).slice(11)}</span>` },
    { name: "labels", title: "Notes", width: "minmax(52px, 0.6fr)",
      cell: (row) => html`<${Name} text=${(row.labels ?? []).join(", ")} limit=${40} />` },
  ];
}

/** Another click on a column turns its order; numbers begin with the greatest. */
function nextSort(sort, name) {
  return sort === `-${name}` ? name : `-${name}`;
}

function groupLink(run, row) {
  const { stage, label, group_index: id } = row;
  return link("group", { run, id, stage, label });
}

function diffLink(run, [a, b]) {
  return link("diff", { run, a, b });
}
