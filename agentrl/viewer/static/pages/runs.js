/** Runs: what lies in the folder: which runs are alive, how far, how well; two to four to compare. */
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { useApi } from "../lib/api.js";
import { ago, count, number, when } from "../lib/format.js";
import { go, landing, link, route, update } from "../lib/router.js";
import { useCursor } from "../ui/cursor.js";
import { Name } from "../ui/name.js";
import { Sparkline } from "../ui/sparkline.js";
import { Empty, Loaded } from "../ui/state.js";

const MOST = 4;
const LOOK_S = 5; // between two looks at the list

let isLanding = landing === "runs"; // the viewer was opened here, not led here

/** The page of all runs; a viewer of one run opens on that run. */
export function RunsPage() {
  const list = useApi("/api/runs");
  useEffect(() => {
    if (!list.data) return;
    const { runs } = list.data;
    const isStillHere = route.peek().page === "runs"; // else another page was opened meanwhile
    if (isLanding && isStillHere && runs.length === 1) go(link("overview", { run: runs[0].key }), { replace: true });
    isLanding = false;
  }, [list.data]);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || list.reload(), LOOK_S * 1000);
    return () => clearInterval(timer);
  }, []);
  return html`
    <div class="page">
      <${Loaded} of=${list}>${({ runs }) => html`<${Runs} runs=${runs} />`}<//>
    </div>
  `;
}

function Runs({ runs }) {
  const [text, setText] = useState(route.peek().params.query ?? "");
  const [marked, setMarked] = useState([]);
  const shown = runs.filter((run) => matches(run, text));
  const open = (index) => go(link("overview", { run: shown[index].key }));
  const mark = (key) => setMarked(toggled(marked, key));
  const compare = () => marked.length > 1 && go(link("compare", { runs: marked.join(",") }));
  const [active, setActive] = useCursor({
    scope: "Runs",
    noun: "run",
    count: shown.length,
    keyOf: (index) => shown[index].key,
    onOpen: open,
    more: [
      { key: "x", help: "mark the run to compare", run: (index) => index >= 0 && mark(shown[index].key) },
      { key: "c", help: "compare the marked runs", run: compare },
    ],
  });
  const filter = (event) => {
    setText(event.target.value);
    update({ query: event.target.value });
  };
  return html`
    <div class="head">
      <h1>Runs</h1>
      <span class="muted">${shown.length === runs.length ? runs.length : `${shown.length} of ${runs.length}`}</span>
      <div class="end">
        <input class="field" type="search" data-search placeholder="Filter by name" aria-label="Filter runs by name"
          value=${text} onInput=${filter} />
        <button class="button" disabled=${marked.length < 2} onClick=${compare}>
          ${marked.length < 2 ? `Compare: mark 2 to ${MOST}` : `Compare ${marked.length}`}
        </button>
      </div>
    </div>
    ${shown.length === 0
      ? html`<${Empty}>${runs.length === 0 ? "No run lies here yet; agentrl train makes one." : "No run has this name."}<//>`
      : html`<div class="panel scroll-x">
          <table class="rows">
            <thead>
              <tr>
                <th><span class="sr-only">Compare</span></th>
                <th>Run</th>
                <th>State</th>
                <th>Stage</th>
                <th class="num">Step</th>
                <th>Course</th>
                <th class="num">Trajectories</th>
                <th>Last sign</th>
                <th>Started</th>
              </tr>
            </thead>
            <tbody>
              ${shown.map(
                (run, index) => html`<${RunRow} key=${run.key} run=${run} active=${index === active}
                  marked=${marked.includes(run.key)} full=${marked.length >= MOST}
                  onMark=${() => mark(run.key)} onFocus=${() => setActive(index)} />`,
              )}
            </tbody>
          </table>
        </div>`}
  `;
}

function RunRow({ run, active, marked, full, onMark, onFocus }) {
  return html`
    <tr class=${active ? "active" : ""} data-active=${active} onClick=${onFocus}>
      <td>
        <input type="checkbox" aria-label=${`Compare ${run.name}`} checked=${marked}
          disabled=${full && !marked} onChange=${onMark} />
      </td>
      <td>
        <a href=${link("overview", { run: run.key })}><${Name} text=${run.name} limit=${80} /></a>
        ${run.error && html`<div class="bad"><${Name} text=${run.error} limit=${200} /></div>`}
        ${run.command && html`<div class="muted mono"><${Name} text=${run.command} limit=${90} /></div>`}
      </td>
      <td class="nowrap"><span class=${`dot ${run.state}`}></span>${run.state}</td>
      <td>${run.stage ? html`<${Name} text=${run.stage} limit=${30} />` : "–"}</td>
      <td class="num nowrap">${number(run.step)}${run.steps_total ? html`<span class="muted"> / ${number(run.steps_total)}</span>` : ""}</td>
      <td>
        <${Sparkline} points=${run.sparkline} name=${run.sparkline_name ?? ""} />
        ${run.sparkline?.length > 0 && html`<div class="muted small nowrap">${lastOf(run)} <${Name} text=${run.sparkline_name} limit=${40} /></div>`}
      </td>
      <td class="num">${count(run.trajectories)}</td>
      <td class="nowrap" title=${when(run.last_time)}>${ago(run.last_time)}</td>
      <td class="nowrap" title=${when(run.created)}>${when(run.created).slice(0, 16)}</td>
    </tr>
  `;
}

function lastOf(run) {
  const known = run.sparkline.filter(([, value]) => value !== null);
  return known.length > 0 ? number(known[known.length - 1][1]) : "";
}

function matches(run, text) {
  const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
  const words = `${run.name} ${run.stage ?? ""} ${run.state} ${run.command ?? ""}`.toLowerCase();
  return wanted.every((word) => words.includes(word));
}

/** The keys with one more or one less, at most MOST. */
function toggled(keys, key) {
  if (keys.includes(key)) return keys.filter((other) => other !== key);
  return keys.length < MOST ? [...keys, key] : keys;
}
