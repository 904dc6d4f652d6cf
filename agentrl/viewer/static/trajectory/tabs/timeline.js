/** Timeline: generation, tools and waiting as bars over the episode's time. */
import { html } from "../../lib/html.js";
import { useMemo, useState } from "../../vendor/hooks.js";
import { duration } from "../../lib/format.js";
import { Empty } from "../parts/notice.js";
import { shortName } from "../tokens/display.js";
import { ROWS, timelineOf } from "./timeline_model.js";

const WIDTH = 1000;
const ROW = 34;
const TICKS = 5;

/** @param {{answer: object, turn: number | null, onTurn: (index: number) => void}} props */
export function TimelineTab({ answer, turn, onTurn }) {
  const { bars, total, known } = useMemo(() => timelineOf(answer.turns), [answer]);
  if (!bars.length || total <= 0) {
    return html`<${Empty} missing=${answer.missing} only=${["timings"]}>No times are recorded.<//>`;
  }
  const sums = ROWS.map((row) => [row, bars.filter((bar) => bar.row === row)]);
  const used = sums.filter(([, own]) => own.length);
  return html`<div class="timeline pad" tabindex="0" role="group" aria-label="Timeline">
    ${!known && html`<p class="muted">Starts are not recorded here: turns are drawn end to end.</p>`}
    <svg viewBox="0 0 ${WIDTH} ${used.length * ROW + 20}" role="img" aria-label="Bars of time, listed below">
      ${used.map(([row, own], index) => html`<${Bars} key=${row} row=${row} bars=${own} place=${index} total=${total} turn=${turn} onTurn=${onTurn} />`)}
      ${Array.from({ length: TICKS + 1 }, (_, tick) => {
        const x = (WIDTH * tick) / TICKS;
        const anchor = tick === 0 ? "start" : tick === TICKS ? "end" : "middle";
        return html`<text class="tick" x=${x} y=${used.length * ROW + 14} text-anchor=${anchor}
          >${duration((total * tick) / TICKS)}</text
        >`;
      })}
    </svg>
    <table>
      <thead>
        <tr>
          <th scope="col">what</th>
          <th scope="col">total</th>
          <th scope="col">share</th>
          <th scope="col">longest</th>
        </tr>
      </thead>
      <tbody>
        ${used.map(([row, own]) => html`<${Sum} row=${row} bars=${own} total=${total} onTurn=${onTurn} />`)}
      </tbody>
    </table>
  </div>`;
}

/** A row's bars as one shape, however many there are; those of the current turn are framed by another. */
function Bars({ row, bars, place, total, turn, onTurn }) {
  const [pointed, setPointed] = useState(null);
  const shape = useMemo(() => shapeOf(told(bars, total), place, total), [bars, place, total]);
  const own = bars.filter((bar) => bar.turn === turn);
  const under = (event) => {
    const { left, width } = event.currentTarget.ownerSVGElement.getBoundingClientRect();
    return nearest(bars, (total * (event.clientX - left)) / width);
  };
  const text = pointed && `turn ${pointed.turn}: ${shortName(pointed.label)}, ${duration(pointed.length)}`;
  return html`<g class="bar bar-${row}" onPointerMove=${(event) => setPointed(under(event))}>
    <path d=${shape} onClick=${(event) => onTurn(under(event).turn)}>${text && html`<title>${text}</title>`}</path>
    ${own.length > 0 && html`<path class="current" d=${shapeOf(own, place, total)}></path>`}
  </g>`;
}

/** The bars that can be told apart: of those that begin at one place and are a line, the longest. */
function told(bars, total) {
  const lines = new Map();
  for (const bar of bars) {
    const isWide = (WIDTH * bar.length) / total >= 1;
    const key = isWide ? bar : Math.floor((WIDTH * bar.start) / total);
    if (!lines.has(key) || lines.get(key).length < bar.length) lines.set(key, bar);
  }
  return [...lines.values()];
}

function shapeOf(bars, place, total) {
  return bars
    .map(({ start, length }) => {
      const width = Math.max(1, (WIDTH * length) / total);
      return `M${(WIDTH * start) / total} ${place * ROW + 4}h${width}v${ROW - 10}h${-width}z`;
    })
    .join("");
}

/** The bar at a time, or the one that is nearest to it. */
function nearest(bars, time) {
  const distance = ({ start, length }) => Math.max(start - time, time - start - length, 0);
  return bars.reduce((best, bar) => (distance(bar) < distance(best) ? bar : best));
}

function Sum({ row, bars, total, onTurn }) {
  const sum = bars.reduce((seconds, bar) => seconds + bar.length, 0);
  const longest = bars.reduce((most, bar) => (bar.length > most.length ? bar : most));
  return html`<tr>
    <th scope="row"><span class="key bar-${row}"></span>${row}</th>
    <td>${duration(sum)}</td>
    <td>${((100 * sum) / total).toFixed(0)}%</td>
    <td>
      <button type="button" class="quiet" onClick=${() => onTurn(longest.turn)}>
        turn ${longest.turn}: ${shortName(longest.label)}, ${duration(longest.length)}
      </button>
    </td>
  </tr>`;
}
