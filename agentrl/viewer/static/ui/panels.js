/**
 * Panels: a chart a metric, by prefix, with pins. What they show and how is in the address: `filter`, `pins`,
 * `closed`, `x`, `smooth`, `scale`. Those in sight alone are drawn and asked for.
 */
import { useEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { revived } from "../lib/api.js";
import { AXES, grouped, joined, ordered, packed, positive, smoothed, unpacked } from "../lib/curves.js";
import { line, number } from "../lib/format.js";
import { useKeys } from "../lib/keys.js";
import { update } from "../lib/router.js";
import { Chart } from "./chart.js";
import { Empty, Failed } from "./state.js";

const MOST = 1000; // panels on a page; a filter finds the others
const LONGEST = 6000; // characters of the names of one request

/**
 * The curves of the metrics in sight.
 * @param {(names: string[], signal: AbortSignal) => Promise<Record<string, any>>} load
 * @param {string} key what they depend on: another key is another load
 */
export function useCurves(load, key) {
  const state = useRef(null);
  const [, redraw] = useState(0);
  if (state.current?.key !== key) {
    state.current?.abort.abort();
    state.current = { key, found: new Map(), asked: new Set(), seen: state.current?.seen ?? new Set(), abort: new AbortController(), error: null, timer: 0 };
  }
  const now = state.current;
  const ask = () => {
    const names = [...now.seen].filter((name) => !now.asked.has(name));
    let length = 0;
    const batch = names.filter((name) => (length += name.length) <= LONGEST || length === name.length);
    if (batch.length === 0) return;
    batch.forEach((name) => now.asked.add(name));
    load(batch, now.abort.signal).then(
      (found) => {
        if (state.current !== now) return;
        batch.forEach((name) => now.found.set(name, Object.hasOwn(found, name) ? found[name] : null));
        now.error = null;
        redraw((count) => count + 1);
        ask();
      },
      (error) => {
        if (state.current !== now || now.abort.signal.aborted) return;
        batch.forEach((name) => now.asked.delete(name));
        now.error = error;
        redraw((count) => count + 1);
      },
    );
  };
  const later = () => {
    clearTimeout(now.timer);
    now.timer = setTimeout(ask, 0); // the panels of one scroll together
  };
  const refresh = () => {
    now.asked.clear();
    later();
  };
  useEffect(refresh, [key, revived.value]);
  useEffect(() => () => state.current.abort.abort(), []);
  return {
    of: (name) => now.found.get(name),
    error: now.error,
    refresh,
    watch: (name) => {
      now.seen.add(name);
      later();
      return () => now.seen.delete(name);
    },
  };
}

/** The axis that the address names. */
const axisOf = ({ x }) => (Object.hasOwn(AXES, x ?? "") ? x : "step");

/** The controls of the panels. */
export function PanelControls({ params, axes = Object.keys(AXES), children }) {
  const x = axisOf(params);
  const isLog = params.scale === "log";
  const log = () => update({ scale: isLog ? "" : "log" });
  const axis = (name) => update({ x: name === "step" ? "" : name });
  useKeys("Charts", [
    { key: "s", help: `charts by ${axes.join(", ")}`, run: () => axis(axes[(axes.indexOf(x) + 1) % axes.length]) },
    { key: "l", help: "logarithmic axis or not", run: log },
  ]);
  return html`<div class="controls">
    <input class="field" type="search" data-search placeholder="Filter metrics" aria-label="Filter metrics by name" value=${params.filter ?? ""}
      onInput=${({ target }) => update({ filter: target.value })} />
    <label>x${" "}<select class="field" value=${x} onChange=${({ target }) => axis(target.value)}>
      ${axes.map((name) => html`<option key=${name} value=${name}>${AXES[name]}</option>`)}
    </select></label>
    <label>Smoothing${" "}<input type="range" min="0" max="0.98" step="0.02" value=${params.smooth ?? 0}
      onInput=${({ target }) => update({ smooth: target.value === "0" ? "" : target.value })} /> ${params.smooth ?? "0"}</label>
    <button class="button" aria-pressed=${isLog} onClick=${log}>log axis</button>
    ${children}
  </div>`;
}

/**
 * @param {object} props
 * @param {string[]} props.names of all metrics, sorted
 * @param {Record<string, string>} props.params of the address
 * @param {ReturnType<typeof useCurves>} props.curves each metric's `{lines: [{name, curve, note}], notes}`
 * @param {object} props.chart what each chart is given
 * @param {(name: string) => any} [props.actions] what stands behind a title
 * @param {(step: number) => void} [props.onStep]
 * @param {boolean} [props.isPlain] whether they stand without prefixes and pins
 */
export function Panels({ names, params, curves, isPlain = false, ...rest }) {
  const filter = params.filter ?? "";
  const pins = unpacked(params.pins).filter((name) => names.includes(name));
  const closed = unpacked(params.closed);
  const groups = useMemo(() => grouped(names.filter((name) => !pins.includes(name)), filter), [names, filter, params.pins]);
  const total = groups.reduce((sum, [, own]) => sum + own.length, 0);
  let left = MOST;
  const taken = (own) => {
    left -= own.length;
    return left >= 0 ? own : own.slice(0, Math.max(0, left + own.length));
  };
  const toggle = (list, name, param) =>
    update({ [param]: packed(list.includes(name) ? list.filter((one) => one !== name) : [...list, name]) });
  const panel = (name) => html`<${Panel} key=${name} name=${name} params=${params} curves=${curves}
    isPinned=${pins.includes(name)} onPin=${!isPlain && (() => toggle(pins, name, "pins"))} ...${rest} />`;
  if (isPlain) return html`${curves.error && html`<${Failed} error=${curves.error} />`}<div class="charts">${names.map(panel)}</div>`;
  return html`
    ${curves.error && html`<${Failed} error=${curves.error} />`}
    ${pins.length > 0 && html`<section aria-label="Pinned metrics"><h2>Pinned</h2><div class="charts">${pins.map(panel)}</div></section>`}
    ${total === 0 && filter && html`<${Empty}>No metric has a name with these words.<//>`}
    ${groups.map(([prefix, own]) => {
      const isOpen = !closed.includes(prefix || "/");
      return html`<details key=${prefix} class="metric-group" open=${isOpen} onToggle=${({ currentTarget }) => currentTarget.open !== isOpen && toggle(closed, prefix || "/", "closed")}>
        <summary><h2><bdi>${line(prefix, 80) || "without a prefix"}</bdi> <span class="muted">${own.length}</span></h2></summary>
        ${isOpen && html`<div class="charts">${taken(own).map(panel)}</div>`}
      </details>`;
    })}
    ${left < 0 && html`<p class="muted">${number(MOST)} of ${number(total)} metrics are shown; the filter finds the others.</p>`}
  `;
}

function Panel({ name, params, curves, isPinned, onPin, chart, actions, onStep }) {
  const box = useRef(null);
  const [isNear, setIsNear] = useState(false);
  useEffect(() => {
    const seen = new IntersectionObserver((entries) => setIsNear(entries.at(-1).isIntersecting), {
      root: box.current.closest("main"),
      rootMargin: "300px",
    });
    seen.observe(box.current);
    return () => seen.disconnect();
  }, []);
  useEffect(() => (isNear ? curves.watch(name) : undefined), [isNear, name]);
  const found = curves.of(name);
  return html`<div class="panel metric" ref=${box} data-metric=${name}>
    ${isNear && found
      ? html`<${Drawn} name=${name} found=${found} params=${params} chart=${chart} onStep=${onStep}
          actions=${html`${onPin && html`<button class="plain" aria-label=${`${isPinned ? "Unpin" : "Pin"} ${line(name, 200)}`} onClick=${onPin}>${isPinned ? "unpin" : "pin"}</button>`}${actions?.(name)}`} />`
      : html`<h3><bdi>${line(name, 200)}</bdi></h3>`}
  </div>`;
}

function Drawn({ name, found, params, chart, actions, onStep }) {
  const axis = axisOf(params);
  const isLog = params.scale === "log";
  const { x, series, steps, dropped } = useMemo(
    () => drawn(found.lines, axis, Math.min(0.99, Number(params.smooth) || 0), isLog),
    [found, axis, params.smooth, isLog],
  );
  const notes = [...found.notes, dropped > 0 && `${number(dropped)} values of 0 or less have no place on this axis`].filter(Boolean);
  return html`
    <${Chart} title=${name} x=${x} series=${series} log=${isLog} xName=${AXES[axis]} actions=${actions} ...${chart(axis)}
      onPoint=${onStep && ((index) => onStep(steps[index]))} />
    ${notes.map((note) => html`<p key=${note} class="muted small">${note}</p>`)}
  `;
}

/** What a chart draws of curves by one axis. */
function drawn(lines, axis, weight, isLog) {
  const shown = isLog ? positive : (values) => values;
  let dropped = 0;
  const curves = lines.map(({ curve }) => {
    const at = ordered(curve, axis);
    const values = at("value");
    if (isLog) dropped += values.filter((value) => value !== null && value <= 0).length;
    const edges = curve.low ? [shown(at("low")), shown(at("high"))] : [];
    return { x: at(axis), columns: [at("step"), shown(values), shown(smoothed(values, weight)), ...edges] };
  });
  const { x, columns } = joined(curves);
  const series = lines.flatMap(({ name, hue, note }, index) => {
    const [, values, smooth, low, high] = columns[index];
    return [
      { name, hue, note, values: weight > 0 ? smooth : values },
      ...(weight > 0 ? [{ name, hue, kind: "faint", values }] : []),
      ...(low ? [{ name, hue, kind: "edge", values: low }, { name, hue, kind: "edge", values: high }] : []),
    ];
  });
  const steps = x.map((_, index) => columns.map(([step]) => step[index]).find((step) => step !== null));
  return { x, series, steps, dropped };
}
