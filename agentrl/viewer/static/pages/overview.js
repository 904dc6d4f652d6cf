/** Overview: what to look at first, how the run's numbers went, its alerts and evaluations; live. */
import { useMemo } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { ofRun, useApi } from "../lib/api.js";
import { ago, count, line, number, when } from "../lib/format.js";
import { useLatest } from "../lib/live.js";
import { term } from "../lib/query.js";
import { go, link, update } from "../lib/router.js";
import { useKeys } from "../lib/keys.js";
import { Chart } from "../ui/chart.js";
import { Name } from "../ui/name.js";
import { Empty, Loaded } from "../ui/state.js";
import { StageChoice, stageOf } from "../ui/stage_choice.js";
import { linkOf } from "../ui/target.js";

const ALERTS = 30;

/** The page of one run. */
export function OverviewPage({ run, params }) {
  const overview = useApi(ofRun(run, "overview"));
  const names = [...new Set((overview.data?.charts ?? []).flatMap((chart) => chart.names))];
  const metrics = useApi(overview.data ? ofRun(run, "metrics") : "", { names: names.join(",") });
  useLatest(run, ["step", "alert", "open", "trajectories"], () => {
    overview.reload();
    metrics.reload();
  }, { wait: 2000 });
  const byTime = params.x === "time";
  useKeys("Overview", [
    { key: "s", help: "charts by step or by time", run: () => update({ x: byTime ? "" : "time" }) },
  ]);
  return html`
    <div class="page overview">
      <h1 class="sr-only">Overview</h1>
      <${Loaded} of=${overview}>
        ${(data) => html`
          <${Findings} run=${run} findings=${data.findings} />
          ${data.kept.map((own) => html`<${Kept} key=${own.stage} kept=${own} several=${data.kept.length > 1} />`)}
          <${Charts} run=${run} charts=${data.charts} alerts=${data.alerts} metrics=${metrics} byTime=${byTime} wanted=${params.stage} />
          <div class="columns">
            <${Alerts} run=${run} alerts=${data.alerts} />
            <${Evaluations} run=${run} evaluations=${data.evaluations} />
          </div>
        `}
      <//>
    </div>
  `;
}

function Findings({ run, findings }) {
  return html`
    <section class="panel" aria-labelledby="look-here">
      <h2 id="look-here">Look here</h2>
      ${findings.length === 0
        ? html`<p class="muted">Nothing stands out: no alert, no mismatch, no sudden change.</p>`
        : html`<ol class="findings">
            ${findings.map((finding, index) => {
              const href = linkOf(run, finding.link);
              const text = html`<${Name} text=${finding.text} limit=${300} />`;
              return html`<li key=${index}>
                <span class=${`chip ${finding.kind === "alert" ? "bad" : "warn"}`}><${Name} text=${finding.kind} limit=${24} /></span>
                ${href ? html`<a href=${href}>${text}</a>` : text}
              </li>`;
            })}
          </ol>`}
    </section>
  `;
}

/** How much of a stage's older steps the run still has; each stage counts its own. */
function Kept({ kept, several }) {
  const [first, last] = kept.steps;
  return html`<p class="muted">
    store.keep left ${count(kept.kept)} of ${count(kept.of)} trajectories of ${first === last ? `step ${first}` : `steps ${first} to ${last}`}${several && html` of stage <${Name} text=${kept.stage} />`}.
  </p>`;
}

function Charts({ run, charts, alerts, metrics, byTime, wanted }) {
  const stages = metrics.data?.stages ?? [];
  const shown = stageOf(stages, wanted);
  const stage = stages.length > 1 ? shown.stage : null; // of several the one that is shown
  const table = useMemo(() => (shown ? sorted(shown.columns, byTime) : null), [shown, byTime]);
  const marks = useMemo(() => {
    const own = alerts.filter((alert) => stage === null || alert.stage === stage || (byTime && !alert.stage));
    return own.map((alert) => (byTime ? alert.time : alert.step)).filter(Number.isFinite);
  }, [alerts, byTime, stage]);
  const open = (index) => {
    const query = `step:${table.steps[index]}${stage === null ? "" : ` ${term("stage", stage)}`}`;
    go(link("trajectories", { run, query }));
  };
  return html`
    <section aria-labelledby="charts">
      <div class="head">
        <h2 id="charts">Metrics</h2>
        <div class="end">
          <${StageChoice} names=${stages.map((one) => one.stage)} chosen=${shown?.stage} />
          <button class="button" aria-pressed=${!byTime} onClick=${() => update({ x: "" })}>by step</button>
          <button class="button" aria-pressed=${byTime} onClick=${() => update({ x: "time" })}>by time</button>
        </div>
      </div>
      <${Loaded} of=${metrics}>
        ${() => {
          const drawn = table ? charts.map((chart) => filled(chart, table)).filter(({ series }) => series.length > 0) : [];
          return drawn.length === 0
            ? html`<${Empty}>No step has ended yet; the charts begin with the first.<//>`
            : html`<div class="charts">
                ${drawn.map(
                  ({ title, series }) => html`<div class="panel" key=${title}>
                    <${Chart} title=${title} x=${table.x} series=${series} time=${byTime}
                      xName=${byTime ? "time" : "step"} marks=${marks} onPoint=${open} sync=${run} />
                  </div>`,
                )}
              </div>`;
        }}
      <//>
    </section>
  `;
}

/** A stage's metrics in ascending order of the axis; uPlot needs that, the times of a resumed run have none. */
function sorted(columns, byTime) {
  const axis = byTime ? columns.time : columns.step;
  const order = axis
    .map((_, index) => index)
    .filter((index) => Number.isFinite(axis[index]))
    .sort((a, b) => axis[a] - axis[b] || a - b);
  return {
    x: order.map((index) => axis[index]),
    steps: order.map((index) => columns.step[index]),
    column: (name) => (Object.hasOwn(columns, name) ? order.map((index) => columns[name][index]) : null),
  };
}

function filled({ title, names }, table) {
  const series = names
    .map((name) => ({ name, values: table.column(name) }))
    .filter(({ values }) => values?.some((value) => value !== null));
  return { title, series };
}

function Alerts({ run, alerts }) {
  if (alerts.length === 0) return null;
  const shown = [...alerts].reverse().slice(0, ALERTS);
  return html`
    <section class="panel" aria-labelledby="alerts">
      <h2 id="alerts">Alerts <span class="muted">${alerts.length}</span></h2>
      <table class="rows">
        <thead><tr><th class="num">Step</th><th>Alert</th><th>When</th></tr></thead>
        <tbody>
          ${shown.map((alert, index) => {
            const href = linkOf(run, alert.link);
            const text = html`<${Name} text=${alert.text} limit=${240} />`;
            return html`<tr key=${index}>
              <td class="num">${number(alert.step)}</td>
              <td>
                <span class=${alert.level === "error" ? "bad" : "warn"}>${alert.level}</span>${" "}${href ? html`<a href=${href}>${text}</a>` : text}
                ${alert.trajectories.map((id) => html`${" "}<a key=${id} href=${linkOf(run, { page: "trajectory", id })}><${Name} text=${id} limit=${40} /></a>`)}
              </td>
              <td title=${when(alert.time)}>${ago(alert.time)}</td>
            </tr>`;
          })}
        </tbody>
      </table>
    </section>
  `;
}

/** Evaluations: by label, each metric's value at each step that was evaluated. */
function Evaluations({ run, evaluations }) {
  const labels = Object.entries(evaluations ?? {});
  if (labels.length === 0) return null;
  return html`
    <section class="panel" aria-labelledby="evaluations">
      <h2 id="evaluations">Evaluations</h2>
      <div class="scroll-x">
        <table class="rows">
          <thead><tr><th>Evaluation</th><th>Values</th></tr></thead>
          <tbody>
            ${labels.map(
              ([label, values]) => html`<tr key=${label}>
                <td><a href=${link("trajectories", { run, query: `label:${JSON.stringify(label)}` })}><${Name} text=${label} limit=${60} /></a></td>
                <td><${Values} of=${values} /></td>
              </tr>`,
            )}
          </tbody>
        </table>
      </div>
    </section>
  `;
}

function Values({ of }) {
  if (of === null || typeof of !== "object") return number(of);
  const entries = Object.entries(of).slice(0, 40);
  return html`<span class="pairs">
    ${entries.map(
      ([name, value]) => html`<span key=${name}><span class="muted"><${Name} text=${name} limit=${60} /></span>${" "}${typeof value === "object" ? line(JSON.stringify(value), 80) : number(value)}</span>`,
    )}
  </span>`;
}
