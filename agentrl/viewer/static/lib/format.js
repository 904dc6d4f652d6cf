/** Format: numbers, times and foreign text as people read them. Pure functions. */
import { showUnseen } from "./unseen.js";

const INTEGER = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/**
 * A number with about `digits` significant digits; "–" where there is none.
 * @param {number|null|undefined} value
 * @param {number} [digits]
 */
export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return minus(INTEGER.format(value));
  const size = Math.abs(value);
  if (size >= 1e6 || (size < 1e-3 && size > 0)) return minus(value.toExponential(digits - 1));
  if (size >= 10 ** digits) return minus(INTEGER.format(value));
  return minus(String(Number(value.toPrecision(digits))));
}

/** A count, short: 950, 12.3k, 4.1M. */
export function count(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size < 10_000) return minus(INTEGER.format(value));
  if (size < 1e6) return `${minus(Number((value / 1e3).toPrecision(3)).toString())}k`;
  return `${minus(Number((value / 1e6).toPrecision(3)).toString())}M`;
}

/** A share of one, as percent. */
export function percent(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return `${Number((100 * value).toPrecision(3))}%`;
}

/** Seconds: 85 ms, 3.2 s, 4 min 10 s, 2 h 5 min. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} days ${hours % 24} h`;
}

/** How long ago an epoch second was; a clock that went back gives "just now". */
export function ago(time, now = Date.now() / 1000) {
  if (!Number.isFinite(time) || time <= 0) return "–";
  const seconds = now - time;
  if (seconds < 5) return "just now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 172_800) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86_400)} days ago`;
}

/** An epoch second as local date and time. */
export function when(time) {
  const seconds = typeof time === "string" ? Date.parse(time) / 1000 : time;
  if (!Number.isFinite(seconds) || seconds <= 0) return "–";
  const date = new Date(seconds * 1000);
  const two = (value) => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** Bytes: 950 B, 12.3 kB, 4.1 MB. */
export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (value >= size) return `${Number((value / size).toPrecision(3))} ${unit}`;
  }
  return `${value} B`;
}

/** The text cut at `limit` characters; the cut says how much is missing. */
export function clip(text, limit = 2000) {
  const whole = String(text ?? "");
  if (whole.length <= limit) return whole;
  let end = limit;
  const last = whole.charCodeAt(end - 1);
  if (last >= 0xd800 && last <= 0xdbff) end -= 1; // not between the halves of a character
  return `${whole.slice(0, end)} … ${INTEGER.format(whole.length - end)} more characters`;
}

/** One line of foreign text: visible, spaces joined, cut. */
export function line(text, limit = 160) {
  const whole = String(text ?? "");
  const head = whole.slice(0, 4 * limit).replace(/\s+/g, " ").trim();
  const shown = showUnseen(head.slice(0, limit));
  return head.length > limit || whole.length > 4 * limit ? `${shown}…` : shown;
}

/** What names have in common up to a slash: `eval/code/` of `eval/code/greedy` and `eval/code/sampled`. */
export function commonFolder(names) {
  if (names.length < 2) return "";
  let end = 0;
  while (end < names[0].length && names.every((name) => name[end] === names[0][end])) end += 1;
  return names[0].slice(0, names[0].lastIndexOf("/", end - 1) + 1);
}

function minus(text) {
  return text.replace(/^-/, "−").replace("e-", "e−");
}
