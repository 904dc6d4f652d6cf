/** Runs: what lies in the folder: which are alive, how far, how well; chosen columns, tags; two or more to compare. */
import { useEffect, useMemo, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { del, ofRun, post, useApi } from "../lib/api.js";
import { packed, unpacked } from "../lib/curves.js";
import { ago, count, line, number, when } from "../lib/format.js";
import { runFilter, sortedRuns, valueOf } from "../lib/run_filter.js";
import { go, landing, link, offers, route, update } from "../lib/router.js";
import { ColumnChoice, WithoutColumn } from "../ui/column_choice.js";
import { useCursor } from "../ui/cursor.js";
import { Name } from "../ui/name.js";
import { Sparkline } from "../ui/sparkline.js";
import { Empty, Loaded } from "../ui/state.js";
import { Value } from "./settings.js";

const MOST = 16;
const LOOK_S = 5; // between two looks at the list

let isLanding = landing === "runs"; // the viewer was opened here, not led here

/** Columns of every run: name, title, whether it is a number. */
const OWN = [
  ["name", "Run"],
  ["state", "State"],
  ["stage", "Stage"],
  ["step", "Step", true],
  ["sparkline", "Course"],
  ["trajectories", "Trajectories", true],
  ["last_time", "Last sign"],
  ["created", "Started"],
  ["tags", "Tags"],
];

/** The page of all runs; a viewer of one run opens on that run. Filter, order and columns are in the address. */
export function RunsPage({ params }) {
  const columns = unpacked(params.columns);
  const list = useApi("/api/runs", { columns });
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
      <${Loaded} of=${list}>${({ runs }) => html`<${Runs} runs=${runs} columns=${columns} sort=${params.sort ?? ""} reload=${list.reload} />`}<//>
    </div>
  `;
}

function Runs({ runs, columns, sort, reload }) {
  const [text, setText] = useState(route.peek().params.query ?? "");
  const [marked, setMarked] = useState([]);
  const { fits, error } = useMemo(() => runFilter(text, columns), [text, columns.join("\n")]);
  const shown = sortedRuns(runs.filter(fits), sort);
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
  const heads = [...OWN, ...columns.map((name) => [name, name.slice(name.indexOf(":") + 1), true])];
  return html`
    <div class="head">
      <h1>Runs</h1>
      <span class="muted">${shown.length === runs.length ? runs.length : `${shown.length} of ${runs.length}`}</span>
      <div class="end controls">
        <input class="field" type="search" data-search placeholder="words, step>10, tag:good" aria-label="Filter runs"
          aria-invalid=${Boolean(error)} aria-describedby="runs-error" value=${text} onInput=${filter} />
        ${offers("tags") && html`<${RunColumnChoice} columns=${columns} />`}
        <button class="button" disabled=${marked.length < 2} onClick=${compare}>
          ${marked.length < 2 ? `Compare: mark 2 to ${MOST}` : `Compare ${marked.length}`}
        </button>
      </div>
    </div>
    <p id="runs-error" class="bad" role="alert">${line(error, 200)}</p>
    ${shown.length === 0
      ? html`<${Empty}>${runs.length === 0 ? "No run lies here yet; agentrl train makes one." : "No run fits the filter."}<//>`
      : html`<div class="panel scroll-x">
          <table class="rows">
            <thead>
              <tr>
                <th><span class="sr-only">Compare</span></th>
                ${heads.map(([name, title, isNumber]) => html`<${Head} key=${name} name=${name} title=${title} isNumber=${isNumber} sort=${sort}
                  onRemove=${columns.includes(name) && (() => update({ columns: packed(columns.filter((one) => one !== name)) }))} />`)}
              </tr>
            </thead>
            <tbody>
              ${shown.map(
                (run, index) => html`<${RunRow} key=${run.key} run=${run} columns=${columns} active=${index === active}
                  marked=${marked.includes(run.key)} full=${marked.length >= MOST} reload=${reload}
                  onMark=${() => mark(run.key)} onFocus=${() => setActive(index)} />`,
              )}
            </tbody>
          </table>
        </div>`}
  `;
}

/** A column's name, by which a click sorts: ascending, descending, not. */
function Head({ name, title, isNumber, sort, onRemove }) {
  const order = sort === name ? "ascending" : sort === `-${name}` ? "descending" : "none";
  const next = { none: name, ascending: `-${name}`, descending: "" }[order];
  const shown = html`<${Name} text=${title} limit=${60} />`;
  if (name === "sparkline" || name === "tags") return html`<th>${shown}</th>`;
  return html`<th class=${isNumber ? "num" : ""} aria-sort=${order}>
    <button class="plain" onClick=${() => update({ sort: next })}>${shown}${{ ascending: " ↑", descending: " ↓", none: "" }[order]}</button>
    ${onRemove && html`${" "}<${WithoutColumn} title=${title} onRemove=${onRemove} />`}
  </th>`;
}

/** Adds a column: any setting, entry of a record or metric of any run. */
function RunColumnChoice({ columns }) {
  const [isAsked, setIsAsked] = useState(false);
  const { data } = useApi(isAsked ? "/api/columns" : "");
  const add = (name) => columns.includes(name) || update({ columns: packed([...columns, name]) });
  return html`<${ColumnChoice} known=${data?.columns ?? []} onAdd=${add} onFocus=${() => setIsAsked(true)} />`;
}

function RunRow({ run, columns, active, marked, full, reload, onMark, onFocus }) {
  return html`
    <tr class=${active ? "active" : ""} data-active=${active} onClick=${onFocus}>
      <td>
        <input type="checkbox" aria-label=${`Compare ${run.name}`} checked=${marked}
          disabled=${full && !marked} onChange=${onMark} />
      </td>
      <td class="run-cell">
        <a href=${link("overview", { run: run.key })}><${Name} text=${run.name} limit=${80} /></a>
        ${[run.error, run.settings_error].filter(Boolean).map((error) => html`<div key=${error} class="bad"><${Name} text=${error} limit=${200} /></div>`)}
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
      <td><${Tags} run=${run} reload=${reload} /></td>
      ${columns.map((name) => html`<td key=${name} class="num"><${Value} of=${valueOf(run, name) ?? undefined} digits=${4} /></td>`)}
    </tr>
  `;
}

/** Labels that people gave the run; a field adds one, × takes one's own back. */
function Tags({ run, reload }) {
  const [error, setError] = useState("");
  if (run.error || !offers("tags")) return null;
  const done = (asked) => asked.then(reload, (caught) => setError(caught.message));
  const add = (event) => {
    if (event.key !== "Enter" || !event.target.value.trim()) return;
    event.preventDefault();
    setError("");
    done(post(ofRun(run.key, "notes"), { trajectory: "", labels: [event.target.value.trim()] }));
    event.target.value = "";
  };
  return html`<span class="tags">
    ${(run.tags ?? []).map(({ id, labels, user }) => html`<span key=${id} class="chip accent" title=${`by ${line(user, 40)}`}><${Name} text=${labels.join(" ")} limit=${40} />${" "}<button
      class="plain" aria-label=${`Take back the tag ${line(labels.join(" "), 40)}`} onClick=${() => done(del(ofRun(run.key, `notes/${encodeURIComponent(id)}`)))}>×</button></span>`)}
    <input class="field tag" placeholder="+ tag" aria-label=${`Tag of ${run.name}`} onKeyDown=${add} />
    ${error && html`<span class="bad" role="alert"><${Name} text=${error} limit=${200} /></span>`}
  </span>`;
}

function lastOf(run) {
  const known = run.sparkline.filter(([, value]) => value !== null);
  return known.length > 0 ? number(known[known.length - 1][1]) : "";
}

/** The keys with one more or one less, at most MOST. */
function toggled(keys, key) {
  if (keys.includes(key)) return keys.filter((other) => other !== key);
  return keys.length < MOST ? [...keys, key] : keys;
}
