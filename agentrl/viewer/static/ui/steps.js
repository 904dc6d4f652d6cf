/** Steps: the steps of a run's stage for which episodes were played, as the pages that choose some of them need. */
import { useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { ofRun, useApi } from "../lib/api.js";
import { number } from "../lib/format.js";
import { update } from "../lib/router.js";
import { Draft } from "./draft.js";
import { StageChoice, stageOf } from "./stage_choice.js";
import { Empty, Loaded } from "./state.js";

const RANGE = /^\s*(\d+)\s*(?:\.\.|-|–|to)\s*(\d+)\s*$|^\s*(\d+)\s*$/;
const ALL = 1_000_000; // values of a metric that are not thinned out

/**
 * @typedef {object} Steps
 * @property {number[]} steps ascending, each once
 * @property {string[]} stages that played any
 * @property {string} stage whose steps they are; "" where the run has one alone
 */

/**
 * The frame of a page that asks about steps: `page` is shown once there are so many, else `lacking`,
 * which is given how many there are.
 */
export function StepsPage({ title, hint, run, params, least, lacking, page }) {
  const steps = useSteps(run, params.stage);
  return html`
    <div class="page">
      <div class="head">
        <h1>${title}</h1>
        <span class="muted">${hint}</span>
      </div>
      <${Loaded} of=${steps}>
        ${({ steps: made, ...stages }) =>
          made.length < least
            ? html`<${Empty}>${lacking(made.length)}<//>`
            : html`<${page} run=${run} params=${params} steps=${made} ...${stages} />`}
      <//>
    </div>
  `;
}

/**
 * @param {string} run the run's key
 * @param {string|undefined} wanted a stage's name
 * @returns {{data: Steps|null, error: Error|null, loading: boolean}}
 */
function useSteps(run, wanted) {
  const metrics = useApi(ofRun(run, "metrics"), { names: "reward/mean", points: ALL });
  return { ...metrics, data: metrics.data && chosen(metrics.data.stages, wanted) };
}

function chosen(all, wanted) {
  const played = all.filter(({ series }) => series["reward/mean"]?.step.length > 0);
  const { stage = "", series } = stageOf(played, wanted) ?? {};
  return {
    steps: series?.["reward/mean"].step ?? [],
    stages: played.map((one) => one.stage),
    stage: all.length > 1 ? stage : "",
  };
}

/**
 * The two ranges and the query that an address asks for; without any, the first and the last fifth
 * of the steps, which say most about a course.
 * @param {number[]} steps ascending
 */
export function chosenRanges(steps, params) {
  const size = Math.max(1, Math.floor(steps.length / 5));
  const range = (own) => `${own[0]}..${own[own.length - 1]}`;
  return {
    a: params.a ?? range(steps.slice(0, size)),
    b: params.b ?? range(steps.slice(-size)),
    query: params.query ?? "purpose:train",
  };
}

/** Fields of the two ranges and of the query; `children` are more of them. */
export function RangeForm({ a, b, query, steps, stages, stage, children }) {
  return html`
    <form class="panel controls" onSubmit=${(event) => event.preventDefault()}>
      <${StageChoice} names=${stages} chosen=${stage} />
      <${RangeField} name="a" value=${a} onRange=${(range) => update({ a: range })} />
      <${RangeField} name="b" value=${b} onRange=${(range) => update({ b: range })} />
      <label>of the trajectories
        <${Draft} class="field mono" type="search" data-search placeholder="purpose:train" value=${query}
          onDone=${(text) => update({ query: text.trim() })} />
      </label>
      ${children}
      <span class="muted">steps ${number(steps[0])} to ${number(steps[steps.length - 1])}</span>
    </form>
  `;
}

function RangeField({ name, value, onRange }) {
  const [error, setError] = useState("");
  const change = (text) => {
    const match = RANGE.exec(text);
    const [from, to] = match ? [Number(match[1] ?? match[3]), Number(match[2] ?? match[3])] : [1, 0];
    setError(from <= to ? "" : `steps, expected a range such as ${value}`);
    if (from <= to) onRange(`${from}..${to}`);
  };
  return html`
    <label><b>${name}</b> steps
      <${Draft} class="field mono range" value=${value} aria-invalid=${Boolean(error)} onDone=${change} />
      ${error && html`<span class="bad" role="alert">${error}</span>`}
    </label>
  `;
}
