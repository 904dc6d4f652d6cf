/** Facets: how the found trajectories spread over values and numbers; a click narrows the query. */
import { html } from "../lib/html.js";
import { count, line, number } from "../lib/format.js";
import { has, term, terms, toggled } from "../lib/query.js";
import { Name } from "./name.js";

const HEIGHT = 44;
const VALUES = 8;

/**
 * @param {object} props
 * @param {{columns: Object<string, [unknown, number][]>, histograms: Object<string, {edges: number[], counts: number[]}>}} props.facets
 * @param {number} props.total how many trajectories were found
 * @param {string} props.query
 * @param {(query: string) => void} props.onQuery
 */
export function Facets({ facets, total, query, onQuery }) {
  const histograms = Object.entries(facets.histograms ?? {}).filter((entry) => narrows(entry, query));
  const columns = Object.entries(facets.columns ?? {}).filter(([name, values]) => useful(name, values, query, total));
  return html`
    <div class="facets" role="region" aria-label="Narrow the list">
      <h2 class="sr-only">Narrow the list</h2>
      ${histograms.map(
        ([name, histogram]) => html`<${Histogram} key=${name} name=${name} ...${histogram} query=${query} onQuery=${onQuery} />`,
      )}
      ${columns.map(
        ([name, values]) => html`<${Values} key=${name} name=${name} values=${values} query=${query} onQuery=${onQuery} />`,
      )}
    </div>
  `;
}

/** A histogram of one bar narrows nothing, unless the query asks for its number. */
function narrows([name, { counts }], query) {
  const bars = counts.filter(Boolean).length;
  const isAsked = (one) => one.startsWith(`${name}<`) || one.startsWith(`${name}>`);
  return bars > 1 || (bars === 1 && terms(query).some(isAsked));
}

/** A column of one value for all narrows nothing, unless it is what the query asks for. */
function useful(name, values, query, total) {
  const known = values.filter(([value]) => value !== "" && value !== null);
  return known.length > 1 || known.some(([, amount]) => amount < total) || known.some(([value]) => has(query, term(name, value)));
}

function Values({ name, values, query, onQuery }) {
  const known = values.filter(([value]) => value !== "" && value !== null);
  const most = Math.max(...known.map(([, amount]) => amount));
  return html`
    <section>
      <h3><${Name} text=${name} limit=${40} /></h3>
      <ul>
        ${known.slice(0, VALUES).map(([value, amount]) => {
          const wanted = term(name, value);
          return html`<li key=${String(value)}>
            <button class="plain facet" aria-pressed=${has(query, wanted)} onClick=${() => onQuery(toggled(query, wanted))}>
              <${Name} text=${value} limit=${32} />
              <span class="num">${count(amount)}</span>
              <i style=${{ width: `${(100 * amount) / most}%` }}></i>
            </button>
          </li>`;
        })}
      </ul>
      ${known.length > VALUES && html`<p class="muted small">${known.length - VALUES} more values</p>`}
    </section>
  `;
}

function Histogram({ name, edges, counts, query, onQuery }) {
  const most = Math.max(...counts);
  return html`
    <section>
      <h3><${Name} text=${name} limit=${40} /></h3>
      <div class="histogram" role="group" aria-label=${`${line(name, 40)}: ${counts.length} ranges`}>
        ${counts.map((amount, index) => {
          const wanted = rangeOf(name, edges, index);
          const tall = amount > 0 ? Math.max(2, (HEIGHT * amount) / most) : 0;
          const label = `${number(edges[index])} to ${number(edges[index + 1])}: ${amount}`;
          return html`<button key=${index} class="plain" title=${label} aria-label=${label} disabled=${amount === 0}
            aria-pressed=${wanted.every((one) => has(query, one))} onClick=${() => onQuery(toggled(query, ...wanted))}>
            <i style=${{ height: `${tall}px` }}></i>
          </button>`;
        })}
      </div>
      <div class="edges small muted"><span>${number(edges[0])}</span><span>${number(edges[edges.length - 1])}</span></div>
    </section>
  `;
}

/** The terms of one bar; the last bar holds its upper edge too. */
function rangeOf(key, edges, index) {
  const upper = index === edges.length - 2 ? "<=" : "<";
  return [`${key}>=${edges[index]}`, `${key}${upper}${edges[index + 1]}`];
}
