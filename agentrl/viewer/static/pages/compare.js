/** Compare runs: two to four runs in the same charts, stage by stage, and what of their settings and records differs. */
import { useEffect, useMemo, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { get, ofRun, revived } from "../lib/api.js";
import { line, number } from "../lib/format.js";
import { differences } from "../lib/records.js";
import { link, update } from "../lib/router.js";
import { useKeys } from "../lib/keys.js";
import { Chart } from "../ui/chart.js";
import { Name } from "../ui/name.js";
import { StageChoice } from "../ui/stage_choice.js";
import { Empty, Loaded } from "../ui/state.js";

const MOST_CHARTS = 24;
const MOST_DIFFERENCES = 200;

/** The page; `runs` in the query names them, divided by commas. */
export function ComparePage({ params }) {
  const keys = (params.runs ?? "").split(",").filter(Boolean).slice(0, 4);
  const runs = useRuns(keys);
  const relative = params.x === "time";
  useKeys("Compare", [
    { key: "s", help: "charts by step or by time since the start", run: () => update({ x: relative ? "" : "time" }) },
  ]);
  if (keys.length < 2) {
    return html`<div class="page"><${Empty}>Mark two to four runs in the list of <a href=${link("runs")}>runs</a>.<//></div>`;
  }
  return html`
    <div class="page">
      <div class="head">
        <h1>Compare</h1>
        <div class="end">
          <button class="button" aria-pressed=${!relative} onClick=${() => update({ x: "" })}>by step</button>
          <button class="button" aria-pressed=${relative} onClick=${() => update({ x: "time" })}>by time since start</button>
        </div>
      </div>
      <${Loaded} of=${runs}>${(data) => html`<${Runs} runs=${data} relative=${relative} wanted=${params.stage} />`}<//>
    </div>
  `;
}

/** Everything of the runs, or the first failure. */
function useRuns(keys) {
  const [state, setState] = useState({ data: null, error: null, loading: true });
  const joined = keys.join(",");
  const times = revived.value;
  useEffect(() => {
    const abort = new AbortController();
    Promise.all(keys.map((key) => load(key, abort.signal))).then(
      (data) => setState({ data, error: null, loading: false }),
      (error) => abort.signal.aborted || setState({ data: null, error, loading: false }),
    );
    return () => abort.abort();
  }, [joined, times]);
  return state;
}

async function load(key, signal) {
  const [about, overview, settings] = await Promise.all([
    get(ofRun(key), {}, { signal }),
    get(ofRun(key, "overview"), {}, { signal }),
    get(ofRun(key, "settings"), {}, { signal }),
  ]);
  const names = [...new Set(overview.charts.flatMap((chart) => chart.names))].join(",");
  const { stages } = await get(ofRun(key, "metrics"), { names }, { signal });
  return { key, about, settings, charts: overview.charts, stages };
}

function Runs({ runs, relative, wanted }) {
  const names = runs.map(({ about }) => about.name);
  const stages = [...new Set(runs.flatMap((run) => run.stages.map(({ stage }) => stage)))];
  const shared = stages.filter((name) => runs.every((run) => run.stages.some((one) => one.stage === name)));
  // runs that share no stage are compared by the newest of each; the legend says which that is
  const stage = stages.includes(wanted) ? wanted : shared.at(-1);
  const shown = runs.map((run) => (stage === undefined ? run.stages.at(-1) : run.stages.find((one) => one.stage === stage)));
  const charts = useMemo(() => joinedCharts(runs, shown, relative), [runs, stage, relative]);
  return html`
    <ul class="run-legend">
      ${runs.map(
        ({ key, about }, index) => html`<li key=${key}>
          <i class=${`swatch s${index + 1}`}></i>
          <a href=${link("overview", { run: key })}><${Name} text=${about.name} limit=${80} /></a>
          <span class="muted"> ${about.state}${stages.length > 1 && `, ${shown[index] ? `stage ${line(shown[index].stage ?? "", 40)}` : "has no such stage"}`}</span>
        </li>`,
      )}
      ${stages.length > 1 && html`<li><${StageChoice} names=${stages} chosen=${stage} first=${shared.length === 0 && "the newest of each"} /></li>`}
    </ul>
    ${charts.length === 0
      ? html`<${Empty}>The runs have no metric in common to draw.<//>`
      : html`<h2 class="sr-only">Metrics</h2><div class="charts">
          ${charts.map(
            ({ title, x, values }) => html`<div class="panel" key=${title}>
              <${Chart} title=${title} x=${x} xName=${relative ? "hours" : "step"} sync="compare" named=${false}
                series=${values.map((own, index) => ({ name: names[index], values: own }))} />
            </div>`,
          )}
        </div>`}
    <${Differences} runs=${runs} names=${names} />
  `;
}

/** A chart a metric, with a line a run, over the union of their places. */
function joinedCharts(runs, shown, relative) {
  const names = [...new Set(runs.flatMap(({ charts }) => charts.flatMap((chart) => chart.names)))];
  const columns = shown.map((own) => own?.columns ?? { step: [], time: [] });
  const places = columns.map((own) => placesOf(own, relative));
  const x = [...new Set(places.flat())].filter(Number.isFinite).sort((a, b) => a - b);
  const found = names.map((title) => ({
    title,
    x,
    values: columns.map((own, index) => spread(x, places[index], Object.hasOwn(own, title) ? own[title] : [])),
  }));
  const known = ({ values }) => values.filter((own) => own.some((value) => value !== null)).length;
  return found.filter((chart) => known(chart) > 0).slice(0, MOST_CHARTS);
}

function placesOf({ step, time }, relative) {
  if (!relative) return step;
  const first = time.filter(Number.isFinite).reduce((a, b) => Math.min(a, b), Infinity);
  return time.map((at) => (Number.isFinite(at) ? (at - first) / 3600 : null));
}

/** The values at their places on the common axis; of two at one place the later one. */
function spread(x, places, values) {
  const at = new Map(places.map((place, index) => [place, values[index] ?? null]));
  return x.map((place) => at.get(place) ?? null);
}

function Differences({ runs, names }) {
  const rows = useMemo(() => {
    const [settings, records] = [runs.map((run) => run.settings), runs.map(({ about }) => about.record ?? {})];
    return [...differences(settings), ...differences(records)];
  }, [runs]);
  return html`
    <section class="panel scroll-x" aria-labelledby="differences">
      <h2 id="differences">What differs <span class="muted">in the resolved settings, then in the runs' records</span></h2>
      ${rows.length === 0
        ? html`<p class="muted">Nothing.</p>`
        : html`<table class="rows">
            <thead><tr><th>Entry</th>${names.map((name, index) => html`<th key=${index}><${Name} text=${name} limit=${40} /></th>`)}</tr></thead>
            <tbody>
              ${rows.slice(0, MOST_DIFFERENCES).map(
                ({ path, values }) => html`<tr key=${path}>
                  <td class="mono"><${Name} text=${path} limit=${80} /></td>
                  ${values.map((value, index) => html`<td key=${index}>${shown(value)}</td>`)}
                </tr>`,
              )}
            </tbody>
          </table>`}
    </section>
  `;
}

function shown(value) {
  if (value === undefined) return html`<span class="muted">–</span>`;
  if (typeof value === "number") return number(value, 6);
  return html`<bdi>${line(typeof value === "string" ? value : JSON.stringify(value), 160)}</bdi>`;
}
