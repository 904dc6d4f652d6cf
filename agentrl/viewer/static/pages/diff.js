/** Diff: two trajectories, their tokens aligned. */
import { useMemo } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { ofRun, useApi } from "../lib/api.js";
import { number } from "../lib/format.js";
import { link, update } from "../lib/router.js";
import { useKeys } from "../lib/keys.js";
import { AlignmentView, useAlignment } from "../ui/alignment.js";
import { Name } from "../ui/name.js";
import { Empty, Loaded } from "../ui/state.js";
import { rewardClass, statusClass } from "../ui/status.js";
import { sequenceOf } from "./group.js";

/** The page of a diff; `a` and `b` in the query are the two ids. */
export function DiffPage({ run, params }) {
  const { a, b } = params;
  useKeys("Diff", [{ key: "x", help: "the other way round", run: () => update({ a: b, b: a }) }]);
  if (!a || !b) {
    return html`<div class="page"><${Empty}>Mark two trajectories in a list with <kbd>x</kbd>, then press <kbd>d</kbd>.<//></div>`;
  }
  return html`
    <div class="page fill group-page">
      <div class="head">
        <h1>Diff</h1>
        <div class="end"><button class="button" onClick=${() => update({ a: b, b: a })}>Swap <kbd>x</kbd></button></div>
      </div>
      <div class="columns">
        <${Side} key=${`a ${a}`} run=${run} id=${a} name="a" />
        <${Side} key=${`b ${b}`} run=${run} id=${b} name="b" />
      </div>
      <${TokenDiff} run=${run} a=${a} b=${b} />
    </div>
  `;
}

function Side({ run, id, name }) {
  const one = useApi(ofRun(run, "trajectory"), { id });
  return html`
    <section class="panel" aria-label=${`Trajectory ${name}`}>
      <h2>${name}: <a href=${link("trajectory", { run, id })}><${Name} text=${id} limit=${60} /></a></h2>
      <${Loaded} of=${one}>
        ${({ summary }) => html`<p class="pairs">
          <span class=${`chip ${statusClass(summary.status)}`}>${summary.status}</span>
          <span>reward <b class=${rewardClass(summary.reward)}>${number(summary.reward)}</b></span>
          <span>step ${number(summary.step)}</span>
          <span>version ${number(summary.policy_version_max)}</span>
          <span>${number(summary.num_turns)} turns</span>
          <span>${number(summary.num_tokens)} tokens</span>
          <span>task <${Name} text=${summary.task_id} limit=${40} /></span>
        </p>`}
      <//>
    </section>
  `;
}

/** The tokens of two trajectories, aligned; `b` is compared with `a`. */
export function TokenDiff({ run, a, b }) {
  const one = useApi(ofRun(run, "tokens"), { id: a });
  const other = useApi(ofRun(run, "tokens"), { id: b });
  const both = one.data && other.data && !one.loading && !other.loading;
  const sequences = useMemo(
    () => (both ? [sequenceOf({ id: a, rollout: "a" }, one.data), sequenceOf({ id: `b ${b}`, rollout: "b" }, other.data)] : []),
    [both && one.data, both && other.data],
  );
  const state = useAlignment(sequences, 0);
  const hrefOf = ({ label }, place) =>
    link("trajectory", { run, id: label === "a" ? a : b, tab: "tokens", tokens: `${place}-${place}` });
  const failed = one.error ?? other.error;
  if (failed) return html`<${Loaded} of=${{ data: null, error: failed }} />`;
  if (!both) return html`<${Empty}>Loading tokens…<//>`;
  return html`<${AlignmentView} sequences=${sequences} reference=${0} state=${state} hrefOf=${hrefOf} />`;
}
