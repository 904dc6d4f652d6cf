/** Behaviour: what the policy does and says more or less often in one range of steps than in another. */
import { html } from "../lib/html.js";
import { useEffect, useState } from "../vendor/hooks.js";
import { get, ofRun, useApi } from "../lib/api.js";
import { number, percent } from "../lib/format.js";
import { go, link } from "../lib/router.js";
import { useCursor } from "../ui/cursor.js";
import { Name } from "../ui/name.js";
import { Loaded } from "../ui/state.js";
import { Sparkline } from "../ui/sparkline.js";
import { chosenRanges, RangeForm, StepsPage } from "../ui/steps.js";

/** The page; the two ranges and a query are in the address. */
export function BehaviourPage({ run, params }) {
  return html`<${StepsPage} title="Behaviour" hint="what changed most from a to b, of what the policy sampled"
    run=${run} params=${params} least=${2} page=${Ranges}
    lacking=${(made) => `It takes two steps that logged reward/mean to compare; this run has made ${made}.`} />`;
}

function Ranges({ run, params, steps, stages, stage }) {
  const { a, b, query } = chosenRanges(steps, params);
  const found = useApi(ofRun(run, "behaviour"), { a, b, query, stage });
  return html`
    <${RangeForm} a=${a} b=${b} query=${query} steps=${steps} stages=${stages} stage=${stage} />
    <${Loaded} of=${found} waiting=${html`<${Reading} run=${run} />`}>
      ${(data) => html`
        <p class="muted" role="status">
          ${number(data.num_a)} trajectories of a, ${number(data.num_b)} of b.
          ${data.complete === false && " More were there than are read at once; these are an even share."}
        </p>
        <${Changes} run=${run} stage=${stage} data=${data} a=${a} b=${b} />
      `}
    <//>
  `;
}

/** How many trajectories were read, asked for while they are. */
function Reading({ run }) {
  const [{ read, of }, setRead] = useState({ read: 0, of: 0 });
  useEffect(() => {
    // a server that is lost is told at the top of the page
    const timer = setInterval(() => get(ofRun(run, "reading")).then(setRead, () => {}), 500);
    return () => clearInterval(timer);
  }, [run]);
  return html`<p class="empty" role="status">
    ${of === 0 ? "Loading…" : html`<progress value=${read} max=${of} aria-label="trajectories"></progress> ${number(read)} of ${number(of)} trajectories are read.`}
  </p>`;
}

function Changes({ run, stage, data, a, b }) {
  const all = [...data.patterns.map((one) => ({ ...one, kind: "pattern" })), ...data.phrases.map((one) => ({ ...one, kind: "phrase" }))];
  const [active, setActive] = useCursor({
    scope: "Changes",
    noun: "change",
    count: all.length,
    onOpen: (index) => {
      const id = exampleOf(all[index]);
      if (id) go(link("trajectory", { run, id }));
    },
  });
  const row = (change, index) => html`<${Change} key=${change.text} run=${run} stage=${stage} change=${change}
    active=${index === active} onFocus=${() => setActive(index)} />`;
  const patterns = data.patterns.length;
  return html`
    <${ChangeTable} title="Patterns of tool calls" noun="Pattern" none="No pattern of calls changed more than chance would." a=${a} b=${b}>
      ${all.slice(0, patterns).map(row)}
    <//>
    <${ChangeTable} title="Phrases" noun="Phrase" none="No phrase changed more than chance would." a=${a} b=${b}>
      ${all.slice(patterns).map((change, index) => row(change, patterns + index))}
    <//>
  `;
}

function ChangeTable({ title, noun, none, a, b, children }) {
  return html`
    <section class="panel scroll-x">
      <h2>${title}</h2>
      ${children.length === 0
        ? html`<p class="muted">${none}</p>`
        : html`<table class="rows">
            <thead>
              <tr>
                <th>${noun}</th><th class="num">in a (${a})</th><th class="num">in b (${b})</th><th>Change</th><th>By step</th><th class="num" title="the step from which it is so, where it began at once">Since</th>
                <th class="num">log odds</th><th class="num">p</th><th class="num">Reward with</th>
                <th class="num">Reward without</th><th>Episodes</th>
              </tr>
            </thead>
            <tbody>${children}</tbody>
          </table>`}
    </section>
  `;
}

function Change({ run, stage, change, active, onFocus }) {
  return html`
    <tr class=${active ? "active" : ""} data-active=${active} onClick=${onFocus}>
      <td class="mono phrase"><${Name} text=${change.text} limit=${160} /></td>
      <td class="num">${percent(change.freq_a)}</td>
      <td class="num">${percent(change.freq_b)}</td>
      <td><${Shift} from=${change.freq_a} to=${change.freq_b} /></td>
      <td><${Sparkline} points=${change.course} name="share of episodes by step" /></td>
      <td class="num">${change.since !== null && html`<a href=${link("step", { run, id: change.since, stage })}>${number(change.since)}</a>`}${change.first && html`${" "}<a href=${link("trajectory", { run, id: change.first })} title=${change.first} aria-label="the first episode">first</a>`}</td>
      <td class="num">${change.log_odds > 0 ? "+" : ""}${number(change.log_odds)}</td>
      <td class="num">${number(change.p, 2)}</td>
      <td class="num">${number(change.reward_with)}</td>
      <td class="num">${number(change.reward_without)}</td>
      <td class="links"><${Links} run=${run} name="a" ids=${change.ids_a} /> <${Links} run=${run} name="b" ids=${change.ids_b} /></td>
    </tr>
  `;
}

/** The two shares on one line from 0 to 1. */
function Shift({ from, to }) {
  const [low, high] = [Math.min(from, to), Math.max(from, to)];
  return html`
    <svg class="shift" width="90" height="12" aria-hidden="true">
      <line x1="2" x2="88" y1="6" y2="6" />
      <rect class=${to > from ? "more" : "less"} x=${2 + 86 * low} width=${Math.max(2, 86 * (high - low))} y="3" height="6" rx="2" />
    </svg>
  `;
}

function Links({ run, name, ids }) {
  return ids.slice(0, 4).map(
    (id, index) => html`<a key=${id} href=${link("trajectory", { run, id })} title=${id} aria-label=${`episode ${index + 1} of ${name}`}>${name}${index + 1}</a>${" "}`,
  );
}

/** An episode that shows the change: of the side where it is more frequent. */
function exampleOf({ freq_a: inA, freq_b: inB, ids_a: idsA, ids_b: idsB }) {
  return (inB >= inA ? idsB[0] : idsA[0]) ?? idsB[0] ?? idsA[0];
}
