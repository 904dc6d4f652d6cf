/** Signals: the columns to colour by, each with its spread, a threshold, and the count beyond it. */
import { html } from "../../lib/html.js";
import { useEffect, useState } from "../../vendor/hooks.js";
import { count, percent } from "../../lib/format.js";
import { countFrom, severityHistogram, thresholdText } from "../token_model.js";
import { categorySwatches, numberScale } from "./palette.js";

const SLIDER = 200;

/** A slider's place as a severity, finer near 0; null at its end, where nothing is framed. */
export function severityAt(column, place) {
  return place >= SLIDER ? null : highest(column) * (place / SLIDER) ** 2;
}

function placeOf(column, severity) {
  if (severity === null) return SLIDER;
  return Math.round(SLIDER * Math.sqrt(severity / highest(column)));
}

function highest(column) {
  const top = column.ranked.at(-1);
  return Number.isFinite(top) && top > 0 ? top : column.limit;
}

/**
 * @param {object} props
 * @param {import("../token_model.js").TokenModel} props.model
 * @param {string} props.active name of the column that colours
 * @param {Map<string, number>} props.thresholds severity by column
 * @param {(name: string) => void} props.onColour
 * @param {(name: string, severity: number | null) => void} props.onThreshold
 */
export function Signals({ model, active, thresholds, onColour, onThreshold }) {
  const ready = useIdle(model);
  return html`<ul class="signals" aria-label="Signals">
    ${model.signals.map((name) => {
      const column = model.columns.get(name);
      return html`<li key=${name} class=${name === active ? "active" : ""}>
        <button
          type="button"
          aria-pressed=${name === active}
          title=${column.help}
          onClick=${() => onColour(name)}
        >
          <span>${name}</span><span class="muted">${column.unit}</span>
        </button>
        ${
          ready &&
          column.form !== "category" &&
          html`<${Threshold}
            column=${column}
            severity=${thresholds.get(name) ?? null}
            onChange=${onThreshold}
          />`
        }
      </li>`;
    })}
  </ul>`;
}

/** True once the page has been painted: spreads of all columns are no part of the first paint. */
function useIdle(model) {
  const [ready, setReady] = useState(null);
  useEffect(() => {
    const wish = requestIdleCallback(() => setReady(model), { timeout: 1000 });
    return () => cancelIdleCallback(wish);
  }, [model]);
  return ready === model;
}

function Threshold({ column, severity, onChange }) {
  const beyond = severity === null ? null : countFrom(column, severity);
  return html`<${Histogram} column=${column} />
    <input
      type="range"
      min="0"
      max=${SLIDER}
      value=${placeOf(column, severity)}
      aria-label=${`Threshold of ${column.name}`}
      aria-valuetext=${severity === null ? "none" : thresholdText(column, severity)}
      onInput=${(event) => onChange(column.name, severityAt(column, Number(event.target.value)))}
    />
    <div class="small ${severity === null ? "muted" : ""}">
      ${
        severity === null
          ? "no threshold"
          : `${thresholdText(column, severity)}: ${count(beyond)} of ${count(column.ranked.length)} (${percent(beyond / column.ranked.length)})`
      }
    </div>`;
}

function Histogram({ column }) {
  const bins = column.once("histogram", () => severityHistogram(column, 40));
  const most = Math.log1p(Math.max(...bins, 1));
  return html`<svg class="hist" viewBox="0 0 40 10" preserveAspectRatio="none" aria-hidden="true">
    ${bins.map((size, index) => {
      const height = (10 * Math.log1p(size)) / most;
      return size > 0 && html`<rect x=${index} y=${10 - height} width="0.9" height=${height} />`;
    })}
  </svg>`;
}

const MOST_SWATCHES = 12;

/** @param {{column: import("../token_model.js").TokenColumn}} props */
export function Legend({ column }) {
  const label = `Colours of ${column.name}`;
  if (column.form !== "category") {
    const { low, high, classNames } = numberScale(column);
    return html`<div class="legend" role="img" aria-label=${`${label}: ${low} to ${high}`}>
      <span>${low}</span>
      <span class="scale">${classNames.map((name) => html`<span class="tok-swatch ${name}"></span>`)}</span>
      <span>${high}</span>
    </div>`;
  }
  const swatches = categorySwatches(column);
  const more = swatches.length - MOST_SWATCHES;
  return html`<ul class="legend" aria-label=${label}>
    ${swatches
      .slice(0, MOST_SWATCHES)
      .map(({ label: text, className }) => html`<li class="tok-swatch ${className}">${text}</li>`)}
    ${more > 0 && html`<li class="muted">and ${more} more</li>`}
  </ul>`;
}
