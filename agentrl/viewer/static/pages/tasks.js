/** Tasks: which the policy unlearned, solves at last, never solved, and which teach it nothing more. */
import { html } from "../lib/html.js";
import { ofRun, useApi } from "../lib/api.js";
import { count, number, percent } from "../lib/format.js";
import { go, link, update } from "../lib/router.js";
import { useCursor } from "../ui/cursor.js";
import { Draft } from "../ui/draft.js";
import { Name } from "../ui/name.js";
import { Loaded } from "../ui/state.js";
import { chosenRanges, RangeForm, StepsPage } from "../ui/steps.js";

/** Each list: its key in the answer, its title, and what it says of none. */
const LISTS = [
  ["regressions", "Regressions", "No task's mean reward fell from a to b."],
  ["new", "Solved at last", "No task was solved in b for the first time."],
  ["never", "Never solved", "Each task of b was solved at least once."],
  ["always", "Always solved", "No task was solved by every episode of a and b."],
];

/** The page; the ranges, a query and what counts as solved are in the address. */
export function TasksPage({ run, params }) {
  return html`<${StepsPage} title="Tasks" hint="what became of each from a to b" run=${run} params=${params} least=${2} page=${Ranges}
    lacking=${(made) => `It takes two steps that logged reward/mean to compare; this run has made ${made}.`} />`;
}

function Ranges({ run, params, steps, stages, stage }) {
  const { a, b, query } = chosenRanges(steps, params);
  const found = useApi(ofRun(run, "tasks"), { a, b, query, solved: params.solved, stage });
  return html`
    <${RangeForm} a=${a} b=${b} query=${query} steps=${steps} stages=${stages} stage=${stage}>
      <label>solved is
        <${Draft} class="field mono" value=${params.solved ?? found.data?.solved ?? ""}
          onDone=${(text) => update({ solved: text.trim() })} />
      </label>
    <//>
    <${Loaded} of=${found}>${(data) => html`<${Lists} run=${run} data=${data} />`}<//>
  `;
}

function Lists({ run, data }) {
  const idle = data.never.episodes + data.always.episodes;
  const lists = LISTS.map(([key, ...told]) => [key, ...told, data[key]]);
  const rows = lists.flatMap(([key, , , { rows: own }]) => own.map((row) => ({ ...row, list: key })));
  const [active, setActive] = useCursor({
    scope: "Tasks",
    noun: "task",
    count: rows.length,
    onOpen: (index) => rows[index] && go(link("task", { run, id: rows[index].task })),
  });
  return html`
    <p class="muted" role="status">
      ${count(data.tasks)} tasks in b. ${percent(data.episodes ? idle / data.episodes : 0)} of its ${count(data.episodes)} episodes
      belong to tasks that are never or always solved.
    </p>
    ${lists.map(
      ([key, title, none, list]) => html`<${Tasks} key=${key} run=${run} title=${title} none=${none} list=${list} newly=${key === "new"}
        active=${rows[active]?.list === key ? rows[active].task : null}
        onFocus=${(task) => setActive(rows.findIndex((row) => row.list === key && row.task === task))} />`,
    )}
  `;
}

function Tasks({ run, title, none, list, newly, active, onFocus }) {
  return html`
    <section class="panel scroll-x" tabindex="0" aria-label=${title}>
      <h2>${title} <span class="muted">${count(list.total)}</span></h2>
      ${list.rows.length === 0
        ? html`<p class="muted">${none}</p>`
        : html`<table class="rows">
            <thead>
              <tr>
                <th>Task</th><th class="num">Reward in a</th><th class="num">in b</th><th class="num" title="the change in standard errors">z</th>
                <th class="num">Solved in a</th><th class="num">in b</th><th class="num">Episodes so far</th>
                ${newly && html`<th>Solved first by</th><th>Its calls</th>`}
              </tr>
            </thead>
            <tbody>
              ${list.rows.map(
                (row) => html`<tr key=${row.task} class=${row.task === active ? "active" : ""} data-active=${row.task === active}
                  onClick=${() => onFocus(row.task)}>
                  <td><a href=${link("task", { run, id: row.task })}><${Name} text=${row.task} limit=${80} /></a></td>
                  <td class="num">${number(row.mean_a)}</td>
                  <td class="num">${number(row.mean_b)}</td>
                  <td class="num">${number(row.z, 2)}</td>
                  <td class="num">${row.count_a ? `${row.solved_a} of ${row.count_a}` : "–"}</td>
                  <td class="num">${row.solved_b} of ${row.count_b}</td>
                  <td class="num">${count(row.tried)}</td>
                  ${newly &&
                  html`<td>${row.id && html`<a href=${link("trajectory", { run, id: row.id })}><${Name} text=${row.id} limit=${40} /></a>`}</td>
                    <td class="mono phrase">
                      ${row.new_calls && html`<span class="chip">new</span> `}${row.calls && html`<${Name} text=${row.calls} limit=${120} />`}
                    </td>`}
                </tr>`,
              )}
            </tbody>
          </table>`}
      ${list.total > list.rows.length && html`<p class="muted">The first ${list.rows.length} of ${count(list.total)}.</p>`}
    </section>
  `;
}
