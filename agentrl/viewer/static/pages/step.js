/** Step: the episodes of one step on the wall clock, and what the step waited for; live. */
import { useMemo, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { ofRun, useApi } from "../lib/api.js";
import { count, duration, line, number, percent } from "../lib/format.js";
import { useLatest } from "../lib/live.js";
import { useKeys } from "../lib/keys.js";
import { term } from "../lib/query.js";
import { go, groupLink, link } from "../lib/router.js";
import { useCursor } from "../ui/cursor.js";
import { Lanes, phaseOf, secondsOf } from "../ui/lanes.js";
import { Name } from "../ui/name.js";
import { StageChoice } from "../ui/stage_choice.js";
import { Loaded } from "../ui/state.js";
import { rewardClass } from "../ui/status.js";

const HUES = 8;
const SMALL = 0.01; // share of the step below which parts fold in
const PARTS = {
  generate: ["generating", "", 1],
  wait: ["waiting for others", "--muted", 0.16],
  environment: ["in the environment", "--line-strong", 0.5],
  tool: ["in tools", "--fg", 0.7],
  score: ["scoring", "--warn", 0.5],
  between: ["between turns", "--muted", 0.08],
};

/** The page of a step; `id` is its number. */
export function StepPage({ run, id, params }) {
  const step = useApi(ofRun(run, "step"), { step: id, stage: params.stage });
  useLatest(run, ["step", "trajectories", "state", "open"], step.reload, { wait: 3000 });
  return html`<div class="page"><${Loaded} of=${step}>${(data) => html`<${Step} run=${run} data=${data} />`}<//></div>`;
}

function Step({ run, data }) {
  const { step, stage } = data;
  const own = stage === null ? {} : { stage };
  const to = (id) => id !== null && link("step", { run, id, ...own });
  useKeys("Step", [
    { key: "[", help: "the step before", run: () => data.before !== null && go(to(data.before)) },
    { key: "]", help: "the next step", run: () => data.after !== null && go(to(data.after)) },
  ]);
  const query = `step:${step}${stage ? ` ${term("stage", stage)}` : ""}`;
  return html`
    <div class="head">
      <h1>Step ${number(step)}</h1>
      <span class="muted">${data.goes_on ? "under way" : data.step_s === null || data.step_s === undefined ? "" : duration(data.step_s)}</span>
      <span class="pairs">
        ${to(data.before) && html`<a href=${to(data.before)} title="key [">← ${number(data.before)}</a>`}
        ${to(data.after) && html`<a href=${to(data.after)} title="key ]">${number(data.after)} →</a>`}
        <a href=${link("trajectories", { run, query })}>trajectories</a>
        <a href=${link("blame", { run, step, ...own })}>blame</a>
        <a href=${link("metrics", { run, at: step, ...own })}>metrics</a>
      </span>
      <div class="end"><${StageChoice} names=${data.stages} chosen=${stage} /></div>
    </div>
    <${Waited} run=${run} data=${data} />
    <${Episodes} run=${run} data=${data} />
  `;
}

function Waited({ run, data }) {
  const { waited, step_s: whole } = data;
  const sum = waited.reduce((seconds, one) => seconds + one.seconds, 0);
  const [open, setOpen] = useState(false);
  const small = waited.filter((one) => one.phase !== "other" && one.seconds < SMALL * whole);
  const shown = open || small.length < 2 ? waited : waited.filter((one) => !small.includes(one));
  return html`
    <section class="panel" aria-labelledby="waited">
      <h2 id="waited">What the step waited for</h2>
      ${waited.length === 0
        ? html`<p class="muted">${lacking(data)}</p>`
        : html`
          <table class="rows waits">
            <thead><tr><th>What</th><th><span class="sr-only">Size</span></th><th class="num">Seconds</th><th class="num">Share</th><th>Most of it</th></tr></thead>
            <tbody>
              ${shown.map(
                (one) => html`<tr key=${`${one.phase}/${one.part}`}>
                  <td><${What} of=${one} placed=${data.placed} /></td>
                  <td><span class=${`swatch size s${phaseOf(one.phase)[1]}`} style=${{ width: `${whole > 0 ? (100 * one.seconds) / whole : 0}%` }}></span></td>
                  <td class="num">${seconds(one.seconds)}</td>
                  <td class="num">${percent(whole > 0 ? one.seconds / whole : 0)}</td>
                  <td>${one.episode && html`<a href=${link("trajectory", { run, id: one.episode, tab: "timeline" })}><${Name} text=${one.episode} limit=${50} /></a>`}</td>
                </tr>`,
              )}
            </tbody>
          </table>
          <p role="status">The parts come to <b>${seconds(sum)}</b>, the step logged <b>${seconds(whole)}</b>${" "}
            <span class=${`chip ${sum === whole ? "good" : "warn"}`}>${sum === whole ? "equal" : "not equal"}</span>
            ${small.length > 1 && html` <button class="button" aria-expanded=${open} onClick=${() => setOpen(!open)}>${open ? "without" : "with"} ${small.length} parts below ${percent(SMALL)}, together ${seconds(small.reduce((total, one) => total + one.seconds, 0))}</button>`}</p>
          <p class="muted small">${
            data.placed
              ? "Each moment counts once: to the phase that began last. While a phase waited for episodes, a moment is that of what the episode did that ended last, of those that ran then."
              : "This run did not record when its phases began: each has its logged seconds, at most what those before it leave, and waiting is not divided."
          }</p>`}
    </section>
  `;
}

/** Why nobody knows where the seconds went. */
function lacking({ goes_on: goesOn, now, step }) {
  const doing = (now ?? []).map(({ phase, s }) => `${line(phaseOf(phase)[0], 60)} for ${duration(s)}`).join(", ");
  if (goesOn) return `The step is under way${doing && `: ${doing}`}. Where its seconds went is known once it ends.`;
  if (step === 0) return "What comes before the first step counts in the seconds of step 1.";
  return "The step logged no time/step_s, so nobody knows what it waited for.";
}

function What({ of, placed }) {
  const none = placed && ["wait_rollout", "eval"].includes(of.phase) ? "no episode ran" : "";
  const part = Object.hasOwn(PARTS, of.part) ? PARTS[of.part][0] : of.part || none;
  return html`<${Name} text=${phaseOf(of.phase)[0]} limit=${60} />${part && `: ${line(part, 60)}`}`;
}

function seconds(value) {
  return `${Number(value.toFixed(6))} s`;
}

function Episodes({ run, data }) {
  const { lanes, from, to, oldest, versions } = useMemo(() => lanesOf(run, data), [data]);
  const open = (index) => lanes[index].href && go(lanes[index].href);
  const group = (index) => index >= 0 && lanes[index].group && go(lanes[index].group);
  const [active, setActive] = useCursor({
    scope: "Lanes",
    noun: "lane",
    count: lanes.length,
    keyOf: (index) => lanes[index].key,
    onOpen: open,
    more: [{ key: "G", help: "the lane's group", run: group }],
  });
  const lookOf = ([name, , , version]) => {
    if (name === "generate") return { colour: hueOf(version, oldest), size: 1 };
    if (Object.hasOwn(PARTS, name)) return { colour: PARTS[name][1], size: PARTS[name][2] };
    return { colour: `--series-${phaseOf(name)[1]}`, size: 1 };
  };
  const textOf = ([name, start, end, version]) =>
    `${line(Object.hasOwn(PARTS, name) ? PARTS[name][0] : phaseOf(name)[0], 60)} ${duration(end - start)}${version === null ? "" : `, version ${number(version)}`}`;
  const timed = lanes.some(({ parts }) => parts?.length > 0);
  return html`
    <section class="panel" aria-labelledby="episodes">
      <h2 id="episodes">Episodes <span class="muted">${number(data.total)} in ${number(data.groups.length)} ${data.groups.length === 1 ? "group" : "groups"}</span></h2>
      ${data.shown < data.total && html`<p class="muted">The ${number(data.shown)} that ended last are shown.</p>`}
      ${data.kept && html`<p class="muted">store.keep left ${count(data.kept[0])} of ${count(data.kept[1])} trajectories of the step.</p>`}
      ${data.fault && html`<p class="warn">Some cannot be read: <${Name} text=${data.fault} limit=${300} /></p>`}
      ${data.total === 0 && html`<p class="muted">No episode ended in this step${data.goes_on ? " yet" : ""}.</p>`}
      ${data.total > 0 && !timed && html`<p class="muted">No times of its episodes are recorded.</p>`}
      ${lanes.length > 0 &&
      html`
        <p class="legend small">
          ${versions.map((version) => html`<span key=${version}><i class=${`swatch s${placeOf(version, oldest)}`}></i>generated by version ${number(version)}</span>`)}
          ${["tool", "environment", "wait", "score"].map((name) => html`<span key=${name}><i class=${`swatch ${name}`}></i>${PARTS[name][0]}</span>`)}
        </p>
        <${Lanes} label="Episodes on the wall clock" lanes=${lanes} from=${from} to=${to} marks=${data.placed ? [0, data.step_s ?? 0] : []}
          lookOf=${lookOf} textOf=${textOf} active=${active} onActive=${setActive} />
      `}
    </section>
  `;
}

/** A version's place among the colours. */
const placeOf = (version, oldest) => (version === null ? HUES : ((version - oldest) % HUES) + 1);
const hueOf = (version, oldest) => `--series-${placeOf(version, oldest)}`;
const MOST_VERSIONS = 16; // in the legend

function lanesOf(run, { groups, phases, step_s: whole }) {
  const lanes = [];
  let [from, to] = [0, whole ?? 0];
  const found = new Set();
  if (phases.length > 0) lanes.push({ key: "loop", head: html`<b>Training loop</b>`, parts: phases, said: said(phases, (name) => phaseOf(name)[0]) });
  for (const group of groups) {
    const { stage, label, group: index } = group;
    const href = groupLink(run, group);
    lanes.push({ key: `group/${stage}/${label}/${index}`, href, group: href, head: html`<${GroupHead} group=${group} href=${href} />` });
    for (const episode of group.episodes) {
      const { id, start, end, parts } = episode;
      for (const [name, , , version] of parts) if (name === "generate" && version !== null) found.add(version);
      if (start !== null && end !== null) [from, to] = [Math.min(from, start), Math.max(to, end)];
      const page = link("trajectory", { run, id });
      const span = start === null || end === null ? undefined : [start, end];
      lanes.push({ key: id, href: page, group: href, parts, span, head: html`<${EpisodeHead} episode=${episode} href=${page} />`, said: said(parts, (name) => PARTS[name]?.[0]) });
    }
  }
  const versions = [...found].sort((a, b) => a - b);
  return { lanes, from, to: to > from ? to : from + 1, oldest: versions[0] ?? 0, versions: versions.slice(-MOST_VERSIONS) };
}

/** What a lane shows, for those who do not see it. */
function said(parts, name) {
  const sums = [...secondsOf(parts)].slice(0, 8).map(([own, sum]) => `${line(name(own) ?? own, 60)} ${duration(sum)}`);
  return sums.join(", ") || "no times";
}

function GroupHead({ group, href }) {
  return html`
    <a href=${href}>group ${number(group.group)}</a>
    ${group.label && html`<span class="chip"><${Name} text=${group.label} limit=${40} /></span>`}
    <span class="muted"><${Name} text=${group.task} limit=${40} /></span>
    ${group.span_s > 0 && html`<span class="muted">${duration(group.span_s)}</span>`}
    ${group.no_spread && html`<span class="chip warn" title="all rewards are equal: a comparison teaches nothing">no spread: no gradient</span>`}
    ${group.drop && !group.no_spread && html`<span class="chip warn">not trained: <${Name} text=${group.drop} limit=${40} /></span>`}
  `;
}

function EpisodeHead({ episode, href }) {
  return html`
    <a href=${href}><${Name} text=${episode.id.split("/").at(-1)} limit=${30} /></a>
    <span class=${`num ${rewardClass(episode.reward)}`}>${number(episode.reward)}</span>
    ${episode.status !== "terminated" && html`<span class="muted"><${Name} text=${episode.status} limit=${12} /></span>`}
  `;
}
