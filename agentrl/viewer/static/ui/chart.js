/** Chart: lines over a common axis and bands about them, drawn by uPlot; a click or Enter tells the point. */
import uPlot from "../vendor/uplot.js";
import { useEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { commonFolder, line, number, when } from "../lib/format.js";
import { savePicture } from "../lib/picture.js";
import { colour, theme } from "../lib/theme.js";

const HEIGHT = 150;
const COLOURS = 8;
const DOUBLE_CLICK_MS = 300;
const NONE = [];

/**
 * @typedef {object} Series
 * @property {string} name
 * @property {(number|null)[]} values one for each x; null where there is none
 * @property {number} [hue] of its colour, from 1; by default its place
 * @property {"faint"|"edge"} [kind] a line behind another one, or the edge of a band: the low one, then the high one
 * @property {string} [note] behind its value in the legend
 */

/**
 * @param {object} props
 * @param {string} props.title
 * @param {number[]} props.x ascending; epoch seconds where `time`
 * @param {Series[]} props.series
 * @param {boolean} [props.time] whether x is time
 * @param {string} [props.xName]
 * @param {number[]} [props.marks] places on x to mark, such as alerts
 * @param {boolean} [props.log] whether y is logarithmic
 * @param {any} [props.actions] what stands behind the title
 * @param {boolean} [props.named] whether the legend names the series
 * @param {(index: number) => void} [props.onPoint] called with the index of the point
 * @param {object} [props.sync] uPlot's key that joins the cursors of several charts
 */
export function Chart(props) {
  const { title, x, series, time = false, xName = "step", marks = NONE, log = false, actions, onPoint, sync } = props;
  const lines = series.map((one, index) => ({ hue: index + 1, ...one })).filter(({ kind }) => !kind);
  const { named = lines.length > 1 } = props;
  const box = useRef(null);
  const plot = useRef(null);
  const point = useRef(onPoint);
  point.current = onPoint;
  const [at, setAt] = useState(null);
  const names = series.map(({ name, kind, hue }) => [name, kind, hue].join("\u0000")).join("\u0001");
  const common = named ? commonFolder(lines.map(({ name }) => name)).length : 0;
  const data = useMemo(() => [x, ...series.map(({ values }) => values)], [x, series]);
  const shownTheme = theme.value;
  useEffect(() => {
    const options = optionsOf({ ...sizeOf(box.current), series, time, log, marks, sync, setAt });
    plot.current = new uPlot(options, data, box.current);
    const resized = new ResizeObserver(() => {
      if (box.current?.clientWidth) plot.current?.setSize(sizeOf(box.current));
    });
    resized.observe(box.current);
    return () => {
      resized.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [names, time, log, shownTheme, marks.join(" ")]);
  useEffect(() => {
    if (!plot.current || plot.current.data === data) return;
    const zoom = zoomOf(plot.current);
    plot.current.batch(() => {
      plot.current.setData(data);
      if (zoom) plot.current.setScale("x", zoom); // what is looked at stays, also while points arrive
    });
  }, [data]);
  const open = () => {
    const index = plot.current?.cursor.idx;
    if (index !== null && index !== undefined) point.current?.(index);
  };
  const pressed = useRef(0);
  const kept = useRef(null); // where the keys are; new data leaves it
  const opening = useRef(0); // a click on a zoomed chart, which may be the first of the two that end the zoom
  useEffect(() => () => clearTimeout(opening.current), []);
  const click = (event) => {
    const isDrag = Math.abs(event.clientX - pressed.current) > 3; // which zooms
    clearTimeout(opening.current);
    if (isDrag || event.detail > 1 || !event.target.closest(".u-over")) return;
    if (zoomOf(plot.current)) opening.current = setTimeout(open, DOUBLE_CLICK_MS);
    else open();
  };
  const shown = at ?? x.length - 1;
  return html`
    <figure class="chart">
      <figcaption>
        <h3 title=${line(title, 200)}><bdi>${line(title, 200)}</bdi></h3>
        ${actions && html`<span class="actions">${actions}<button class="plain" aria-label=${`PNG of ${line(title, 200)}`}
          onClick=${() => savePicture(plot.current, line(title, 200), named ? lines : [])}>png</button></span>`}
        <span class="legend">
          ${lines.map(
            ({ name, values, hue, note }) => html`<span key=${name} title=${line(name, 200)}>
              <i class=${`swatch s${((hue - 1) % COLOURS) + 1}`}></i>${named && html`<bdi>${line(name.slice(common), 40)}</bdi>${" "}`}
              <b>${number(at === null ? lastKnown(values) : values[shown])}</b>${note && html` <span class="muted">${note}</span>`}
            </span>`,
          )}
          <span class="muted">${x.length > 0 && at !== null ? `${xName} ${time ? when(x[shown]) : number(x[shown])}` : ""}</span>
        </span>
      </figcaption>
      <div class=${onPoint ? "plot opens" : "plot"} ref=${box} tabindex="0" role="application"
        aria-label=${described(line(title, 200), x, lines, xName, Boolean(onPoint))}
        onPointerDown=${(event) => (pressed.current = event.clientX)} onClick=${click} onKeyDown=${(event) => onKey(event, plot.current, x.length, kept, (index) => point.current?.(index), setAt)}></div>
    </figure>
  `;
}

function described(title, x, series, xName, opens) {
  const lines = series.map(({ name, values }) => `${name} ${number(lastKnown(values))} now`);
  const range = x.length > 0 ? `${x.length} points by ${xName}` : "no points";
  return `${title}: ${range}; ${lines.join(", ")}. Arrows move${opens ? ", Enter opens the point" : ""}.`;
}

function known(values) {
  return values.filter((value) => value !== null && value !== undefined).length;
}

function lastKnown(values) {
  for (let i = values.length - 1; i >= 0; i -= 1) {
    if (values[i] !== null && values[i] !== undefined) return values[i];
  }
  return null;
}

function onKey(event, plot, count, kept, open, setAt) {
  const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
  if (event.key === "Enter") {
    if (kept.current !== null) open(kept.current);
  } else if (event.key in moves && plot && count > 0) {
    const from = kept.current ?? plot.cursor.idx ?? count;
    const index = Math.max(0, Math.min(count - 1, from + moves[event.key]));
    const left = plot.valToPos(plot.data[0][index], "x");
    plot.setCursor({ left, top: plot.over.clientHeight / 2 });
    kept.current = index;
    setAt(index);
  } else {
    return;
  }
  event.preventDefault();
  event.stopPropagation();
}

/** Room for the numbers beside the chart: of a small one the exponent is read too. */
function widthOf(plot, texts) {
  return Math.max(52, 16 + 7 * Math.max(0, ...(texts ?? []).map((text) => text.length)));
}

/** The plot fills its box, which is as high as the row of charts leaves it. */
function sizeOf({ clientWidth, clientHeight }) {
  return { width: Math.max(clientWidth, 50), height: Math.max(clientHeight, HEIGHT) };
}

function optionsOf({ width, height, series, time, log, marks, sync, setAt }) {
  const hueOf = (index) => colour(`--series-${(((series[index].hue ?? index + 1) - 1) % COLOURS) + 1}`);
  const highs = series.map((_, index) => index).filter((index) => series[index].kind === "edge" && series[index - 1].kind === "edge");
  const axis = {
    stroke: colour("--muted"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { stroke: colour("--line"), width: 1, size: 4 },
    font: "11px system-ui, sans-serif",
  };
  return {
    width,
    height,
    padding: [6, 10, 0, 0],
    legend: { show: false },
    cursor: {
      sync: sync ? { key: sync } : undefined,
      points: { size: 7 },
      drag: { x: true, y: false, setScale: true },
    },
    scales: { x: { time, range: placesOf }, y: log ? { distr: 3, range: logRangeOf } : { range: rangeOf } },
    bands: highs.map((index) => ({ series: [index + 1, index], fill: `${hueOf(index)}2e` })),
    axes: [
      { ...axis, size: 26, gap: 4, space: 70, ...(time ? { values: timesOf } : {}) },
      { ...axis, size: widthOf, gap: 4, space: 28, values: (_, splits) => splits.map((v) => number(v)) },
    ],
    series: [
      {},
      ...series.map(({ name, kind }, index) => ({
        label: name,
        stroke: kind === "faint" ? `${hueOf(index)}59` : hueOf(index),
        width: kind === "edge" ? 0 : kind ? 1 : 1.6,
        spanGaps: true,
        points: { show: !kind && known(series[index].values) < 40, size: 4 }, // an evaluation has few, far apart
      })),
    ],
    hooks: {
      setCursor: [(plot) => setAt(plot.cursor.left >= 0 ? (plot.cursor.idx ?? null) : null)],
      drawClear: [(plot) => drawMarks(plot, marks)],
    },
  };
}

/** One point stands in the middle; uPlot would draw an axis of a hundred steps. */
function placesOf({ data: [x] }, low, high) {
  return x.length === 1 ? [x[0] - 1, x[0] + 1] : [low, high];
}

/** The part of the axis that a reader zoomed to; null where all is shown. */
function zoomOf({ data: [x], scales: { x: { min, max } } }) {
  const isAll = x.length < 2 || min === undefined || min === null || (min <= x[0] && max >= x[x.length - 1]);
  return isAll ? null : { min, max };
}

/** Ticks of time on one line: days, minutes or seconds, as far apart as they are. */
function timesOf(_, splits, axis, space, increment) {
  const [from, to] = increment >= 86_400 ? [5, 10] : increment >= 60 ? [11, 16] : [11, 19];
  return splits.map((split) => when(split).slice(from, to));
}

/** A little air above and below; a constant line stands in the middle. */
function rangeOf(_, low, high) {
  if (low === null || high === null) return [0, 1];
  const air = high > low ? (high - low) * 0.08 : Math.abs(high) * 0.1 || 1;
  return [low - air, high + air];
}

/** Whole powers of ten about what is there. */
function logRangeOf(_, low, high) {
  if (low === null || high === null) return [0.1, 1];
  const [from, to] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  return [10 ** from, 10 ** (to > from ? to : from + 1)];
}

function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = colour("--bad");
  ctx.globalAlpha = 0.6;
  ctx.setLineDash([3, 3]);
  for (const mark of marks) {
    const x = Math.round(plot.valToPos(mark, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}
