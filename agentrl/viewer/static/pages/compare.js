/**
 * Compare runs: any metric of up to 16 runs, stage by stage; those that differ by their seed alone are one line with a
 * band. What of their settings and records differs.
 */
import { html } from "../lib/html.js";
import { get, useApi } from "../lib/api.js";
import { line, number } from "../lib/format.js";
import { link } from "../lib/router.js";
import { PanelControls, Panels, useCurves } from "../ui/panels.js";
import { Name } from "../ui/name.js";
import { StageChoice } from "../ui/stage_choice.js";
import { Empty, Loaded } from "../ui/state.js";
import { Value } from "./settings.js";

const MOST_DIFFERENCES = 300;

/** The page; `runs` in the query names them, divided by commas. */
export function ComparePage({ params }) {
  const keys = [...new Set((params.runs ?? "").split(",").filter(Boolean))].slice(0, 16);
  const about = useApi(keys.length > 1 ? "/api/compare" : "", { runs: keys, stage: params.stage });
  if (keys.length < 2) {
    return html`<div class="page"><${Empty}>Mark two or more runs in the list of <a href=${link("runs")}>runs</a>.<//></div>`;
  }
  return html`<div class="page"><${Loaded} of=${about}>${(data) => html`<${Compared} keys=${keys} data=${data} params=${params} />`}<//></div>`;
}

function Compared({ keys, data, params }) {
  const { runs, groups, stages, stage } = data;
  const runOf = (key) => runs.find((run) => run.key === key);
  const names = groups.map((own) => own.map((key) => runOf(key).name).join(", "));
  const curves = useCurves(async (asked, signal) => {
    const { metrics } = await get("/api/compare", { runs: keys, names: asked, stage }, { signal });
    return Object.fromEntries(asked.map((name) => [name, shownOf(metrics[name], names)]));
  }, JSON.stringify([keys, stage, names]));
  return html`
    <div class="head">
      <h1>Compare</h1>
      <div class="end">
        <${StageChoice} names=${stages} chosen=${stage} first=${stage === null && "the newest of each"} />
      </div>
    </div>
    <ul class="run-legend">
      ${groups.map((own, index) => html`<li key=${own[0]}>
        <i class=${`swatch s${(index % 8) + 1}`}></i>
        ${own.map((key, place) => html`${place > 0 && ", "}<a key=${key} href=${link("overview", { run: key })}><${Name} text=${runOf(key).name} limit=${80} /></a>`)}
        <span class="muted">${own.length > 1 && ` differ by their seed alone, n = ${own.length}`}${stage !== null && !own.some((key) => runOf(key).stages.includes(stage)) && " has no such stage"}</span>
      </li>`)}
      ${runs.filter(({ error }) => error).map(({ key, name, error }) => html`<li key=${`${key} error`} class="bad"><${Name} text=${name} limit=${80} />: <${Name} text=${error} limit=${300} /></li>`)}
    </ul>
    <${PanelControls} params=${params} />
    ${data.names.length === 0 && html`<${Empty}>The runs have no metric to draw.<//>`}
    <${Panels} names=${data.names} params=${params} curves=${curves}
      chart=${(axis) => ({ sync: "compare", ...(axis === "time" ? { xName: "hours" } : {}) })} />
    <${Differences} rows=${data.differences} names=${data.compared.map((key) => runOf(key).name)} />
  `;
}

/** A metric as its panel shows it: a line a group, and what each has more than the first. */
function shownOf({ groups, differences }, names) {
  const lines = groups.flatMap((curve, index) => {
    if (!curve) return [];
    const most = Math.max(...curve.runs);
    const own = most > 1 ? curve : { ...curve, low: null, high: null };
    return [{ name: names[index], hue: index + 1, curve: own, note: most > 1 ? `n = ${most}` : "" }];
  });
  const few = groups.some((curve) => curve && new Set(curve.runs).size > 1);
  const notes = differences.slice(1).map((found, index) => differenceOf(found, line(names[index + 1], 60), line(names[0], 60)));
  return { lines, notes: [few && "where runs of a group lack a step, the mean is that of the others", ...notes] };
}

function differenceOf(found, name, first) {
  if (!found) return `${name} − ${first}: no pair of runs has a seed and a step in common`;
  const { mean, half, num_pairs: pairs, first: from, last } = found;
  const steps = from === last ? `step ${number(from)}` : `steps ${number(from)} to ${number(last)}`;
  const interval = half === null ? "" : ` ± ${number(half)} (95%)`;
  return `${name} − ${first}: ${mean > 0 ? "+" : ""}${number(mean)}${interval}, paired by seed, n = ${pairs}, ${steps}`;
}

function Differences({ rows, names }) {
  return html`
    <section class="panel scroll-x" aria-labelledby="differences">
      <h2 id="differences">What differs <span class="muted">in the resolved settings, then in the runs' records</span></h2>
      ${rows.length === 0
        ? html`<p class="muted">Nothing.</p>`
        : html`<table class="rows">
            <thead><tr><th>Entry</th>${names.map((name, index) => html`<th key=${index}><${Name} text=${name} limit=${40} /></th>`)}</tr></thead>
            <tbody>
              ${rows.slice(0, MOST_DIFFERENCES).map(
                ({ path, kind, values }) => html`<tr key=${`${kind} ${path}`}>
                  <td class="mono"><${Name} text=${path} limit=${80} /></td>
                  ${values.map((value, index) => html`<td key=${index}><${Value} of=${value ?? undefined} /></td>`)}
                </tr>`,
              )}
            </tbody>
          </table>`}
      ${rows.length > MOST_DIFFERENCES && html`<p class="muted">The first ${MOST_DIFFERENCES} of ${number(rows.length)}.</p>`}
    </section>
  `;
}
