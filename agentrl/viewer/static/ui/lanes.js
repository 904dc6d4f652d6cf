/** Lanes: what lasted when, a lane each over one axis of time. Those in sight alone exist, each with a canvas. */
import { useEffect, useLayoutEffect, useRef, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { duration } from "../lib/format.js";
import { colour, theme } from "../lib/theme.js";
import { VirtualList } from "./virtual_list.js";

const HEIGHT = 18; // of a lane's canvas, in pixels
const ROW = 24;
const TICK = 110; // pixels between two ticks at least
const LABEL = 60; // pixels of a tick's text, which stands behind it

/**
 * @typedef {[name: string, start: number, end: number, version: number|null]} Part in seconds
 *
 * @typedef {object} Lane
 * @property {string} key
 * @property {any} head what stands before it
 * @property {Part[]} [parts] none for a row that is a heading
 * @property {[number, number]} [span] drawn as a line behind them
 * @property {string} [said] what it shows, in words
 */

/**
 * @param {object} props
 * @param {string} props.label
 * @param {Lane[]} props.lanes
 * @param {number} props.from, props.to of the axis, in seconds
 * @param {number[]} [props.marks] places that each lane has a line at
 * @param {(part: Part) => {colour: string, size: number}} props.lookOf a CSS variable's name, and a share of the height
 * @param {(part: Part) => string} props.textOf what is told of the part below the pointer
 * @param {(seconds: number) => string} [props.tick] the text of a place on the axis
 * @param {(part: Part) => void} [props.onPart] called with the part that is clicked
 * @param {number} [props.active] the lane where the keys are
 * @param {(index: number) => void} [props.onActive]
 */
export function Lanes({ label, lanes, from, to, marks = [], lookOf, textOf, tick = duration, active = -1, onActive, onPart }) {
  const box = useRef(null);
  const axis = useRef(null);
  const [width, setWidth] = useState(0);
  const [told, setTold] = useState("");
  useLayoutEffect(() => {
    const resized = new ResizeObserver(() => setWidth(axis.current?.clientWidth ?? 0));
    resized.observe(axis.current);
    return () => resized.disconnect();
  }, []);
  const shared = { from, to, marks, width, lookOf, theme: theme.value };
  const partAt = (lane, event) => {
    const at = from + ((to - from) * event.offsetX) / Math.max(1, width);
    const near = ((to - from) * 2) / Math.max(1, width); // two pixels
    return lane.parts.findLast(([, start, end]) => start - near <= at && at <= end + near);
  };
  const point = (lane) => (event) => {
    const part = partAt(lane, event);
    setTold(part ? textOf(part) : "");
  };
  const click = (lane) => (event) => {
    const part = partAt(lane, event);
    if (part) onPart(part);
  };
  const entry = (index) => {
    const lane = lanes[index];
    return html`<div key=${lane.key} class=${`time-lane${lane.parts ? "" : " heading"}${index === active ? " active" : ""}`}
      data-active=${index === active} onClick=${() => onActive?.(index)}>
      <div class="time-head">${lane.head}</div>
      ${lane.parts && html`<${Drawn} lane=${lane} ...${shared} onPointerMove=${point(lane)} onPointerLeave=${() => setTold("")} onClick=${onPart && click(lane)} />`}
    </div>`;
  };
  return html`
    <div class="time-lanes" ref=${box} role="region" aria-label=${label} tabindex="0">
      <div class="time-lane axis"><div class="time-head small" role="status">${told}</div><div class="time-axis" ref=${axis} aria-hidden="true">
        ${ticksOf(from, to, width).map((at) => html`<span key=${at} style=${{ left: `${(100 * (at - from)) / (to - from)}%` }}>${tick(at)}</span>`)}
      </div></div>
      <${VirtualList} key=${lanes.length} box=${box} count=${lanes.length} estimate=${() => ROW} entry=${entry} goal=${active} block="nearest" />
    </div>
  `;
}

function Drawn({ lane, from, to, marks, width, lookOf, theme: shown, ...listeners }) {
  const canvas = useRef(null);
  useEffect(() => {
    if (width > 0) draw(canvas.current, { lane, from, to, marks, width, lookOf });
  }, [lane, from, to, marks.join(" "), width, shown]);
  return html`<canvas ref=${canvas} role="img" aria-label=${lane.said} style=${{ height: `${HEIGHT}px` }} ...${listeners}></canvas>`;
}

function draw(canvas, { lane, from, to, marks, width, lookOf }) {
  const ratio = globalThis.devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(width * ratio), HEIGHT * ratio];
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const x = (at) => (width * (at - from)) / (to - from);
  const fill = (name, start, end, size) => {
    const [left, right] = [Math.max(0, x(start)), Math.min(width, x(end))];
    if (right < 0 || left > width) return;
    context.fillStyle = known[name] ??= colour(name);
    context.fillRect(left, (HEIGHT * (1 - size)) / 2, Math.max(1, right - left), HEIGHT * size);
  };
  const known = {};
  if (lane.span) fill("--line-strong", ...lane.span, 0.08);
  for (const part of lane.parts) {
    const { colour: name, size } = lookOf(part);
    fill(name, part[1], part[2], size);
  }
  context.fillStyle = colour("--bad");
  for (const mark of marks) context.fillRect(Math.min(width - 1, Math.max(0, x(mark))), 0, 1, HEIGHT);
}

/** Round places on the axis, some of them in sight. */
function ticksOf(from, to, width) {
  const least = ((to - from) * TICK) / Math.max(width, TICK);
  if (!(least > 0)) return [];
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((size) => size * power).find((size) => size >= least);
  const first = Math.ceil(from / step);
  const last = to - ((to - from) * LABEL) / width;
  const count = Math.floor(last / step) - first + 1;
  return Array.from({ length: Math.max(0, count) }, (_, index) => (first + index) * step);
}

/** The seconds that lanes' parts have, by name. */
export function secondsOf(parts) {
  const found = new Map();
  for (const [name, start, end] of parts) found.set(name, (found.get(name) ?? 0) + end - start);
  return found;
}

const PHASES = {
  wait_rollout: ["rollouts", 8],
  logprobs: ["forward passes", 6],
  update: ["update", 2],
  publish: ["publishing the weights", 3],
  eval: ["evaluation", 4],
  checkpoint: ["checkpoint", 5],
  setup: ["setup", 7],
  other: ["other", 8],
};

/** A phase of the loop for people, and the hue of its colour. */
export const phaseOf = (name) => (Object.hasOwn(PHASES, name) ? PHASES[name] : [name, 1]);
