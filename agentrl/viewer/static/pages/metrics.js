/** Metrics: every number that a run logs, a chart each; live. */
import { html } from "../lib/html.js";
import { get, ofRun, useApi } from "../lib/api.js";
import { AXES } from "../lib/curves.js";
import { number } from "../lib/format.js";
import { useLatest } from "../lib/live.js";
import { term } from "../lib/query.js";
import { go, link, offers } from "../lib/router.js";
import { PanelControls, Panels, useCurves } from "../ui/panels.js";
import { StageChoice, stageOf } from "../ui/stage_choice.js";
import { Empty, Loaded } from "../ui/state.js";

/** The page. */
export function MetricsPage({ run, params }) {
  return html`<div class="page"><${RunMetrics} run=${run} params=${params} title=${html`<h1>Metrics</h1>`} /></div>`;
}

/**
 * The metrics of one stage of a run.
 * @param {{run: string, params: object, title: any, only?: string[]}} props `only`: these, without controls
 */
export function RunMetrics({ run, params, title, only }) {
  const metrics = useApi(ofRun(run, "metrics"));
  useLatest(run, ["step", "alert", "open"], metrics.reload, { wait: 2000 });
  return html`<${Loaded} of=${metrics}>${(data) => html`<${Stage} run=${run} params=${params} title=${title} only=${only} data=${data} />`}<//>`;
}

function Stage({ run, params, title, only, data }) {
  const { stages, alerts } = data;
  const own = stageOf(stages, params.stage);
  const stage = own?.stage ?? null;
  const curves = useCurves(async (names, signal) => {
    const answer = await get(ofRun(run, "metrics"), { names, stage }, { signal });
    const found = answer.stages.find((one) => one.stage === stage);
    return Object.fromEntries(names.map((name) => [name, shownOf(name, found)]));
  }, JSON.stringify([run, stage]));
  useLatest(run, ["step", "open"], curves.refresh, { wait: 2000 });
  if (!own) return html`${title}<${Empty}>No step has ended yet; the charts begin with the first.<//>`;
  const names = only ? own.names.filter((name) => only.includes(name)) : own.names;
  const marks = alerts.filter((alert) => stages.length === 1 || !alert.stage || alert.stage === stage);
  const chart = (axis) => ({ time: axis === "time", sync: run, marks: [...marks.map((alert) => alert[axis]), axis === "step" && !only && params.at ? Number(params.at) : NaN].filter(Number.isFinite) });
  const one = stages.length > 1 ? stage : "";
  const open = (step) =>
    go(offers("step") ? link("step", { run, id: step, stage: one }) : link("trajectories", { run, query: `step:${step}${one && ` ${term("stage", one)}`}` }));
  const csv = (asked) => `${ofRun(run, "metrics.csv")}?${new URLSearchParams([...asked.map((name) => ["names", name]), ...(stage === null ? [] : [["stage", stage]])])}`;
  const csvLink = (asked, label) => offers("csv") && html`<a href=${csv(asked)} download aria-label=${label}>csv</a>`;
  const choice = html`<${StageChoice} names=${stages.map((one) => one.stage)} chosen=${stage} />`;
  return html`
    <div class="head">
      ${title}<span class="muted">${number(own.names.length)} metrics of ${number(own.steps)} ${own.steps === 1 ? "step" : "steps"}</span>
      <div class="end">${choice}</div>
    </div>
    ${!only && html`<${PanelControls} params=${params} axes=${Object.keys(AXES)}>${csvLink([], "CSV of all metrics")}<//>`}
    <${Panels} names=${names} params=${only ? { x: params.x } : params} isPlain=${Boolean(only)} curves=${curves} chart=${chart}
      onStep=${open} actions=${(name) => csvLink([name], `CSV of ${name}`)} />
  `;
}

/** A metric as its panel shows it. */
function shownOf(name, stage) {
  if (!stage) return null;
  const curve = Object.hasOwn(stage.series, name) ? stage.series[name] : { step: [], time: [], tokens: [], value: [], of: 0 };
  const unreadable = Object.hasOwn(stage.unreadable, name) ? stage.unreadable[name] : 0;
  const notes = [
    curve.of > curve.value.length && `${number(curve.value.length)} of ${number(curve.of)} values are drawn: of each stretch the least and the greatest`,
    unreadable > 0 && `${number(unreadable)} ${unreadable === 1 ? "value is" : "values are"} no finite number`,
  ];
  return { lines: [{ name, hue: 1, curve }], notes };
}
