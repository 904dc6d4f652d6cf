/** Sparkline: the course of one number, a word wide. */
import { html } from "../lib/html.js";
import { number } from "../lib/format.js";

const WIDTH = 120;
const HEIGHT = 24;

/**
 * @param {{points: [number, number|null][], name: string}} props points as step and value
 */
export function Sparkline({ points, name }) {
  const known = (points ?? []).filter(([, value]) => Number.isFinite(value));
  if (known.length === 0) return html`<span class="muted">–</span>`;
  const last = known[known.length - 1][1];
  const path = sparkPath(known, WIDTH, HEIGHT);
  return html`
    <svg class="sparkline" width=${WIDTH} height=${HEIGHT} role="img" aria-label=${`${name}: ${number(last)} now`}>
      <path d=${path} />
    </svg>
  `;
}

/**
 * The path of an SVG through points, fitted into a box.
 * @param {[number, number][]} points
 */
export function sparkPath(points, width, height) {
  const xs = points.map(([x]) => x);
  const ys = points.map(([, y]) => y);
  const [left, right] = [Math.min(...xs), Math.max(...xs)];
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const place = points.map(([x, y]) => {
    const across = right > left ? (x - left) / (right - left) : 0.5;
    const up = high > low ? (y - low) / (high - low) : 0.5;
    return `${(2 + across * (width - 4)).toFixed(1)} ${(height - 3 - up * (height - 6)).toFixed(1)}`;
  });
  return place.length === 1 ? `M${place[0]} h1` : `M${place.join(" L")}`;
}
