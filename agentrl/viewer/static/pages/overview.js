/** Overview: what to look at first, how the run's foremost numbers went, its alerts and evaluations; live. */
import { html } from "../lib/html.js";
import { ofRun, useApi } from "../lib/api.js";
import { ago, count, line, number, when } from "../lib/format.js";
import { useLatest } from "../lib/live.js";
import { link, offers } from "../lib/router.js";
import { Name } from "../ui/name.js";
import { Loaded } from "../ui/state.js";
import { linkOf } from "../ui/target.js";
import { RunMetrics } from "./metrics.js";

const ALERTS = 30;

/** The page of one run. */
export function OverviewPage({ run, params }) {
  const overview = useApi(ofRun(run, "overview"));
  useLatest(run, ["step", "alert", "open", "trajectories"], overview.reload, { wait: 2000 });
  return html`
    <div class="page overview">
      <h1 class="sr-only">Overview</h1>
      <${Loaded} of=${overview}>
        ${(data) => html`
          <${Findings} run=${run} findings=${data.findings} />
          ${data.kept.map((own) => html`<${Kept} key=${own.stage} kept=${own} several=${data.kept.length > 1} />`)}
          <${Dropped} run=${run} dropped=${data.dropped} />
          <section aria-label="Metrics">
            <${RunMetrics} run=${run} params=${params} only=${data.headlines} title=${html`<h2><a href=${link("metrics", { run, stage: params.stage })}>Metrics</a></h2>`} />
          </section>
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
        ? html`<p class="muted">Nothing stands out: no alert, and no metric changed suddenly for the worse.</p>`
        : html`<ol class="findings">${findings.map((finding, index) => html`<${Finding} key=${index} run=${run} finding=${finding} />`)}</ol>`}
    </section>
  `;
}

/** A finding: its step, what changed most, and where to see it; the other metrics of that step fold out. */
function Finding({ run, finding }) {
  const href = linkOf(run, finding.link);
  const chart = linkOf(run, finding.chart);
  const text = html`<${Name} text=${finding.text} limit=${300} />`;
  return html`<li>
    <span class=${`chip ${finding.kind === "alert" ? "bad" : "warn"}`}>${finding.kind}</span>
    <div>
      ${href ? html`<a href=${href}>${text}</a>` : text}
      <span class="muted evidence">
        ${finding.episodes.map((id, index) => html`<a key=${id} href=${linkOf(run, { page: "trajectory", id })} title=${id}>episode ${index + 1}</a>`)}
        ${chart && html`<a href=${chart}>chart</a> <${StepLink} run=${run} step=${finding.step} stage=${finding.chart.stage} name="step " />`}
      </span>
      ${finding.metrics.length > 1 && html`<details>
        <summary class="muted">${count(finding.metrics.length)} metrics changed</summary>
        <table class="rows">
          <thead><tr><th>Metric</th><th class="num">Before</th><th class="num">After</th><th class="num" title="times the least change that is a finding">Size</th></tr></thead>
          <tbody>
            ${finding.metrics.map((metric) => html`<tr key=${metric.name}>
              <td><${Name} text=${metric.name} limit=${80} /></td><td class="num">${number(metric.before)}</td><td class="num">${number(metric.after)}</td><td class="num">${number(metric.size, 2)}</td>
            </tr>`)}
          </tbody>
        </table>
      </details>`}
    </div>
  </li>`;
}

/** How much of a stage's older steps the run still has; each stage counts its own. */
function Kept({ kept, several }) {
  const [first, last] = kept.steps;
  return html`<p class="muted">
    store.keep left ${count(kept.kept)} of ${count(kept.of)} trajectories of ${first === last ? `step ${first}` : `steps ${first} to ${last}`}${several && html` of stage <${Name} text=${kept.stage} />`}.
  </p>`;
}

/** What was not trained, and why; some of it is as it should be, such as groups of equal rewards. */
function Dropped({ run, dropped }) {
  if (dropped.length === 0) return null;
  return html`<p class="muted pairs">
    Not trained: ${dropped.map(({ reason, count: size, link: target }) => {
      const href = linkOf(run, target);
      const text = html`${count(size)} for <${Name} text=${reason} limit=${60} />`;
      return html`<span key=${reason}>${href ? html`<a href=${href}>${text}</a>` : text}</span>`;
    })}
  </p>`;
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
              <td class="num"><${StepLink} run=${run} ...${alert} /></td>
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

/** A step, linked to its page. */
function StepLink({ run, step, stage, name = "" }) {
  const text = `${name}${number(step)}`;
  return offers("step") && Number.isInteger(step) && step >= 0 ? html`<a href=${link("step", { run, id: step, stage })}>${text}</a>` : text;
}

/** Evaluations: what was measured when, linked to the trajectories that it was measured on. */
function Evaluations({ run, evaluations }) {
  if (evaluations.length === 0) return null;
  return html`
    <section class="panel" aria-labelledby="evaluations">
      <h2 id="evaluations">Evaluations</h2>
      <div class="scroll-x">
        <table class="rows">
          <thead><tr><th>Evaluation</th><th>Values</th></tr></thead>
          <tbody>
            ${evaluations.map(({ name, values, query }, index) => {
              const text = html`<${Name} text=${name} limit=${60} />`;
              return html`<tr key=${index}>
                <td>${query ? html`<a href=${link("trajectories", { run, query })}>${text}</a>` : text}</td>
                <td><${Values} of=${values} /></td>
              </tr>`;
            })}
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
