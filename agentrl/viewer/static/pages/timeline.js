/** Timeline: the phases of a run's steps, its episodes, and what each process logged, on the wall clock; live. */
import { useMemo } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { ofRun, useApi } from "../lib/api.js";
import { duration, line, number, when } from "../lib/format.js";
import { useLatest } from "../lib/live.js";
import { useKeys } from "../lib/keys.js";
import { go, link, update } from "../lib/router.js";
import { Lanes, phaseOf, secondsOf } from "../ui/lanes.js";
import { StageChoice } from "../ui/stage_choice.js";
import { Empty, Loaded } from "../ui/state.js";
import { RunMetrics } from "./metrics.js";

const NAMES = { __proto__: null, step: ["steps", 1], wait_rollout: ["waiting for rollouts", 8], episodes: ["episodes", 6], evaluations: ["episodes of evaluations", 4], events: ["events of the run", 7] };
/** For people, and the hue; a rank's call, such as actor.update, has that of its phase. */
const nameOf = (name) => NAMES[name] ?? (name.includes(".") ? [name, phaseOf(name.split(".").at(-1))[1]] : phaseOf(name));
const HUES = 8;

/** The page; stage, first and last step are in the address. */
export function TimelinePage({ run, params }) {
  const { stage, first, last } = params;
  const timeline = useApi(ofRun(run, "timeline"), { stage, first, last });
  useLatest(run, ["step", "open"], timeline.reload, { wait: 3000 });
  return html`<div class="page"><${Loaded} of=${timeline}>${(data) => html`<${Timeline} run=${run} params=${params} data=${data} />`}<//></div>`;
}

function Timeline({ run, params, data }) {
  const { steps, stage } = data;
  const [first, last] = ["first", "last"].map((name) => Number(params[name] ?? data[name])); // also before the answer is there
  const move = (by) => show(first + by * (last - first + 1), last + by * (last - first + 1));
  const show = (from, to) => {
    const low = Math.max(0, Math.min(from, to));
    update({ first: low, last: Math.max(low, to) });
  };
  const zoom = (factor) => {
    const size = Math.max(1, Math.round((last - first + 1) * factor));
    const low = Math.round((first + last - size + 1) / 2);
    show(low, low + size - 1);
  };
  const all = () => steps && show(...steps);
  useKeys("Timeline", [
    { key: "[", help: "earlier steps", run: () => move(-1) },
    { key: "]", help: "later steps", run: () => move(1) },
    { key: "+", help: "fewer steps", run: () => zoom(0.5) },
    { key: "-", help: "more steps", run: () => zoom(2) },
    { key: "a", help: "all steps", run: all },
  ]);
  const set = (name) => ({ target }) => /^\d{1,15}$/.test(target.value) && show(...(name === "first" ? [Number(target.value), last] : [first, Number(target.value)]));
  return html`
    <div class="head"><h1>Timeline</h1><span class="muted">${data.lanes.length > 0 && `${when(data.start)}, ${duration(data.end)}`}</span>
      <div class="end"><${StageChoice} names=${data.stages} chosen=${stage} /></div>
    </div>
    <div class="controls">
      <label>Steps${" "}<input class="field" type="number" min="0" value=${first} aria-label="First step" onChange=${set("first")} /></label>
      <label>to${" "}<input class="field" type="number" min="0" value=${last} aria-label="Last step" onChange=${set("last")} /></label>
      <button class="button" onClick=${() => move(-1)} title="key [">Earlier</button>
      <button class="button" onClick=${() => move(1)} title="key ]">Later</button>
      <button class="button" onClick=${() => zoom(0.5)} title="key +">Fewer</button>
      <button class="button" onClick=${() => zoom(2)} title="key -">More</button>
      <button class="button" onClick=${all} title="key a">All</button>
    </div>
    ${data.lanes.length === 0 ? html`<${Empty}>No step from ${number(first)} to ${number(last)} has times.<//>` : html`<${Phases} run=${run} data=${data} />`}
    <${Gpu} run=${run} params=${params} stage=${stage} />
  `;
}

function Phases({ run, data }) {
  const { stage, stages } = data;
  const lanes = useMemo(
    () => data.lanes.map(({ name, parts }) => ({ key: name, head: html`<bdi>${line(nameOf(name)[0], 40)}</bdi>`, parts, said: `${number(parts.length)} times, ${duration([...secondsOf(parts).values()].reduce((sum, own) => sum + own, 0))}` })),
    [data],
  );
  const textOf = ([name, start, end, step]) => `${step === null ? "" : `step ${number(step)}: `}${line(nameOf(name)[0], 60)} ${duration(end - start)}`;
  // neighbours are told apart by their shade
  const lookOf = ([name, , , step]) => ({ colour: name === "step" ? `--series-${(step % 2) * (HUES - 1) + 1}` : `--series-${nameOf(name)[1]}`, size: name === "step" ? 0.6 : 1 });
  const open = ([, , , step]) => step !== null && go(link("step", { run, id: step, stage: stages.length > 1 ? stage : "" }));
  return html`<section class="panel">
    ${!data.placed && html`<p class="muted">This run did not record when its phases began: its steps alone are drawn.</p>`}
    <${Lanes} label="Phases on the wall clock" lanes=${lanes} from=${0} to=${data.end || 1} lookOf=${lookOf} textOf=${textOf} onPart=${open} />
    <p class="muted small">Below the phases of the loop stands what each rank did, and then what each process logged. A click on a phase opens its step.</p>
  </section>`;
}

/** The GPU's series, where the run logged any. */
function Gpu({ run, params, stage }) {
  const metrics = useApi(ofRun(run, "metrics"));
  const names = (metrics.data?.names ?? []).filter((name) => name.startsWith("gpu/"));
  if (names.length === 0) return null;
  return html`<section aria-label="GPU"><${RunMetrics} run=${run} params=${{ ...params, stage, x: "time" }} only=${names} title=${html`<h2>GPU</h2>`} /></section>`;
}
