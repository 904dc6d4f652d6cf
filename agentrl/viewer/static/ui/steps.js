/** Steps: the steps of a run's stage for which episodes were played, as the pages that choose some of them need. */
import { html } from "../lib/html.js";
import { ofRun, useApi } from "../lib/api.js";
import { stageOf } from "./stage_choice.js";
import { Empty, Loaded } from "./state.js";

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
 * Two ranges that say most about a course: its first and its last fifth.
 * @param {number[]} steps ascending
 * @returns {[string, string]} such as "0..10"
 */
export function outerRanges(steps) {
  const size = Math.max(1, Math.floor(steps.length / 5));
  const range = (own) => `${own[0]}..${own[own.length - 1]}`;
  return [range(steps.slice(0, size)), range(steps.slice(-size))];
}
