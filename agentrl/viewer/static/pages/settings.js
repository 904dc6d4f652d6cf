/** Settings: what a run was set to and where that was written, or what of it another run has else. */
import { useMemo } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { ofRun, useApi } from "../lib/api.js";
import { line, number } from "../lib/format.js";
import { useKeys } from "../lib/keys.js";
import { update } from "../lib/router.js";
import { Name } from "../ui/name.js";
import { Empty, Failed, Loaded } from "../ui/state.js";

/** The page; `with` in the query is the key of a run to compare with, `filter` and `set` choose settings. */
export function SettingsPage({ run, params }) {
  const own = useApi(ofRun(run, "settings"));
  const other = useApi(params.with ? ofRun(params.with, "settings") : "");
  const { data } = useApi("/api/runs");
  const runs = data?.runs ?? [];
  const isSet = params.set === "1";
  const onlySet = () => update({ set: isSet ? "" : 1 });
  useKeys("Settings", [{ key: "s", help: "only what was set, or defaults too", run: onlySet }]);
  return html`
    <div class="page">
      <div class="head"><h1>Settings</h1></div>
      <div class="controls">
        <input class="field" type="search" data-search placeholder="Filter settings" aria-label="Filter settings"
          value=${params.filter ?? ""} onInput=${({ target }) => update({ filter: target.value })} />
        <button class="button" aria-pressed=${isSet} onClick=${onlySet}>only what was set</button>
        ${runs.length > 1 && html`<label>Differences from${" "}
          <select class="field" value=${params.with ?? ""} onChange=${({ target }) => update({ with: target.value })}>
            <option value="">no run</option>
            ${runs.filter(({ key }) => key !== run).map(({ key, name }) => html`<option key=${key} value=${key}>${line(name, 60)}</option>`)}
          </select></label>`}
      </div>
      <${Loaded} of=${own}>
        ${(found) => params.with
          ? html`<${Loaded} of=${other}>${(theirs) => html`<${Rows} own=${found} other=${theirs} params=${params}
              names=${[run, params.with].map((key) => runs.find((one) => one.key === key)?.name ?? key)} />`}<//>`
          : html`<${Rows} own=${found} params=${params} names=${["Value"]} />`}
      <//>
    </div>
  `;
}

function Rows({ own, other, params, names }) {
  const rows = useMemo(() => shownRows(own.rows, other?.rows, params.filter ?? "", params.set === "1"), [own, other, params.filter, params.set]);
  const unknown = own.rows.length > 0 && own.rows[0].source === null;
  return html`
    ${[own, other].map((one, index) => one?.error && html`<${Failed} key=${index} error=${{ message: other ? `${line(names[index], 80)}: ${one.error}` : one.error }} />`)}
    ${unknown && html`<p class="muted">Where these were written was not recorded: the run was started from Python, or by an older agentrl.</p>`}
    ${rows.length === 0
      ? html`<${Empty}>${other ? "No such setting differs." : own.rows.length > 0 ? "There is no such setting." : "The run keeps no settings."}<//>`
      : html`<div class="panel scroll-x"><table class="rows settings">
          <thead><tr><th>Setting</th>${names.map((name, index) => html`<th key=${index}><${Name} text=${name} limit=${60} /></th>`)}<th>Source</th></tr></thead>
          <tbody>
            ${rows.map(({ path, values, source }) => html`<tr key=${path}>
              <td class="mono"><${Name} text=${path} limit=${120} /></td>
              ${values.map((value, index) => html`<td key=${index}><${Value} of=${value} /></td>`)}
              <td class=${source === "default" ? "muted" : ""}><${Name} text=${source ?? ""} limit=${120} /></td>
            </tr>`)}
          </tbody>
        </table></div>`}
  `;
}

function shownRows(own, other, filter, isSet) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const theirs = new Map((other ?? []).map((row) => [row.path, row]));
  const mine = new Set(own.map(({ path }) => path));
  const all = other ? [...own, ...other.filter(({ path }) => !mine.has(path)).map((row) => ({ ...row, value: undefined }))] : own;
  const rows = all.map(({ path, value, source }) => ({ path, source, values: other ? [value, theirs.get(path)?.value] : [value] }));
  return rows.filter(({ path, values, source }) => {
    const text = `${path} ${JSON.stringify(values)}`.toLowerCase();
    const differs = !other || JSON.stringify(values[0]) !== JSON.stringify(values[1]);
    return differs && (!isSet || source !== "default") && words.every((word) => text.includes(word));
  });
}

/** A setting's value; "–" where there is none. */
export function Value({ of, digits = 6 }) {
  if (of === undefined) return html`<span class="muted">–</span>`;
  if (typeof of === "number") return number(of, digits);
  return html`<${Name} text=${typeof of === "string" ? of : JSON.stringify(of)} limit=${160} />`;
}
