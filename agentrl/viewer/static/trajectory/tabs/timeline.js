/** Timeline: generation, tools and waiting as bars over the episode's time. */
import { html } from "../../lib/html.js";
import { useMemo } from "../../vendor/hooks.js";
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
      ${used.map(([row, own], index) => drawn(own, total, turn).map((bar) => html`<${Bar} bar=${bar} row=${index} total=${total} current=${bar.turn === turn} onTurn=${onTurn} />`))}
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

/** The bars that can be told apart: of those that begin at one place and are a line, the longest. */
function drawn(bars, total, turn) {
  const lines = new Map();
  for (const bar of bars) {
    const isWide = (WIDTH * bar.length) / total >= 1;
    const key = isWide || bar.turn === turn ? bar : Math.floor((WIDTH * bar.start) / total);
    if (!lines.has(key) || lines.get(key).length < bar.length) lines.set(key, bar);
  }
  return [...lines.values()];
}

function Bar({ bar, row, total, current, onTurn }) {
  const x = (WIDTH * bar.start) / total;
  const width = Math.max(1, (WIDTH * bar.length) / total);
  const text = `turn ${bar.turn}: ${shortName(bar.label)}, ${duration(bar.length)}`;
  return html`<rect
    class="bar bar-${bar.row} ${current ? "current" : ""}"
    x=${x}
    y=${row * ROW + 4}
    width=${width}
    height=${ROW - 10}
    onClick=${() => onTurn(bar.turn)}
  >
    <title>${text}</title>
  </rect>`;
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
