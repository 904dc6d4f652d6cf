/** Task: one task over training: how its reward, length and turns went; two of its episodes in a diff. */
import { useMemo } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { ofRun, useApi } from "../lib/api.js";
import { count, number } from "../lib/format.js";
import { term } from "../lib/query.js";
import { go, link, update } from "../lib/router.js";
import { Chart } from "../ui/chart.js";
import { useCursor } from "../ui/cursor.js";
import { Name } from "../ui/name.js";
import { StageChoice, stageOf } from "../ui/stage_choice.js";
import { Empty, Loaded } from "../ui/state.js";
import { rewardClass, statusClass } from "../ui/status.js";
import { TokenDiff } from "./diff.js";

const ROWS = 500;

/** What the charts show: the name of a series and its title. */
const CHARTS = [
  ["reward", "Reward"],
  ["policy_tokens", "Policy tokens"],
  ["turns", "Turns"],
  ["tool_errors", "Tool errors"],
];

/** The page of a task; `id` is its id, `a` and `b` in the query the episodes of the diff. */
export function TaskPage({ run, id, params }) {
  const task = useApi(ofRun(run, "task"), { task_id: id });
  return html`
    <div class="page task-page">
      <div class="head">
        <h1>Task <${Name} text=${id} limit=${200} /></h1>
        <a href=${link("trajectories", { run, query: term("task", id) })}>in the list</a>
      </div>
      <${Loaded} of=${task}>
        ${(data) =>
          data.rows.length === 0
            ? html`<${Empty}>No trajectory of this task has ended yet.<//>`
            : html`<${Course} run=${run} data=${data} params=${params} />`}
      <//>
    </div>
  `;
}

function Course({ run, data, params }) {
  const { courses, rows } = data;
  const { stage, version, ways, first, last } = stageOf(courses, params.stage);
  const a = params.a ?? first;
  // a task of one version has one typical episode: any other is compared with it
  const other = last === first ? rows.find(({ id }) => id !== first)?.id : last;
  const b = params.b ?? other;
  const charts = useMemo(() => {
    const known = ({ values }) => values.some((value) => value !== null);
    const linesOf = (name) => Object.entries(ways).map(([way, own]) => ({ name: way, values: own[name] })).filter(known);
    return CHARTS.map(([name, title]) => ({ title, lines: linesOf(name) })).filter(({ lines }) => lines.length > 0);
  }, [ways]);
  const open = (index) => {
    const row = rows.find((one) => one.stage === stage && one.newest_version === version[index]);
    if (row) update({ b: row.id });
  };
  return html`
    <div class="head">
      <h2 class="sr-only">Course over training</h2>
      <${StageChoice} names=${courses.map((one) => one.stage)} chosen=${stage} />
    </div>
    <div class="charts">
      ${charts.map(
        ({ title, lines }) => html`<div class="panel" key=${title}>
          <${Chart} title=${title} x=${version} series=${lines} xName="version" onPoint=${open} sync=${`task ${run}`} />
        </div>`,
      )}
    </div>
    <${Episodes} run=${run} several=${courses.length > 1} rows=${rows.slice(0, ROWS)} total=${rows.length} a=${a} b=${b} />
    <section class="task-diff" aria-labelledby="diff-title">
      <div class="head">
        <h2 id="diff-title">Diff of a against b</h2>
        ${a && b && a !== b && html`<a href=${link("diff", { run, a, b })}>on a page of its own</a>`}
      </div>
      ${a && b && a !== b
        ? html`<${TokenDiff} run=${run} a=${a} b=${b} />`
        : html`<p class="muted">Choose two episodes with <kbd>a</kbd> and <kbd>b</kbd>.</p>`}
    </section>
  `;
}

function Episodes({ run, several, rows, total, a, b }) {
  const [active, setActive] = useCursor({
    scope: "Episodes",
    noun: "episode",
    count: rows.length,
    onOpen: (index) => go(link("trajectory", { run, id: rows[index].id })),
    more: ["a", "b"].map((side) => ({
      key: side,
      help: `the episode is ${side} of the diff`,
      run: (index) => index >= 0 && update({ [side]: rows[index].id }),
    })),
  });
  return html`
    <section class="panel scroll-x episodes" tabindex="0" aria-label="Episodes of the task">
      <table class="rows">
        <thead>
          <tr>
            <th>Diff</th>${several && html`<th>Stage</th>`}<th>Played as</th><th class="num">Version</th><th class="num">Step</th><th>Episode</th><th>Status</th>
            <th class="num">Reward</th><th class="num">Turns</th><th class="num">Tokens</th><th class="num">Tool errors</th>
          </tr>
        </thead>
        <tbody>
          ${rows.map(
            (row, index) => html`<tr key=${row.id} class=${index === active ? "active" : ""} data-active=${index === active} onClick=${() => setActive(index)}>
              <td class="sides">
                ${["a", "b"].map(
                  (side) => html`<button key=${side} class="button" aria-pressed=${row.id === (side === "a" ? a : b)}
                    aria-label=${`${side} of the diff`} onClick=${() => update({ [side]: row.id })}>${side}</button>`,
                )}
              </td>
              ${several && html`<td><${Name} text=${row.stage} limit=${30} /></td>`}
              <td><${Name} text=${row.way} limit=${40} /></td>
              <td class="num">${number(row.newest_version)}</td>
              <td class="num">${number(row.step)}</td>
              <td><a href=${link("trajectory", { run, id: row.id })}><${Name} text=${row.id} limit=${60} /></a></td>
              <td><span class=${`chip ${statusClass(row.status)}`}>${row.status}</span></td>
              <td class="num"><span class=${rewardClass(row.reward)}>${number(row.reward)}</span></td>
              <td class="num">${number(row.turns)}</td>
              <td class="num">${count(row.tokens)}</td>
              <td class="num">${number(row.tool_errors)}</td>
            </tr>`,
          )}
        </tbody>
      </table>
      ${total > rows.length && html`<p class="muted">The first ${rows.length} of ${total}; the list of trajectories has all.</p>`}
    </section>
  `;
}
