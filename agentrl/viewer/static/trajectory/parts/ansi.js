/**
 * ANSI: the colours of a terminal's text, as parts of it each with a look. Pure.
 *
 * Only colours and faces (SGR) are read. Every other sequence stays in the text, where it is seen, and so do these
 * beyond MOST_SPANS. A look is that of the theme's palette which comes nearest, so that it can be read in each theme;
 * nothing is concealed.
 */

const SGR = /\x1b\[([\d;:]*)m/g;
const MOST_SPANS = 500;
const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
const HUES = ["red", "yellow", "green", "cyan", "blue", "magenta"]; // 60 degrees each
const CUBE = [0, 95, 135, 175, 215, 255];
const ON = new Map([[1, "bold"], [3, "italic"], [4, "underline"], [7, "reverse"], [9, "strike"]]);
const OFF = new Map([[22, "bold"], [23, "italic"], [24, "underline"], [27, "reverse"], [29, "strike"]]);

/** Whether a text has colours or faces of a terminal. */
export function hasAnsi(text) {
  return text.includes("\x1b[") && text.search(SGR) >= 0;
}

/**
 * @param {string} text
 * @returns {{text: string, look: string}[]} in order, none empty; `look` has the names of CSS classes
 */
export function ansi(text) {
  const spans = [];
  const add = (part, look) => {
    if (part && spans.at(-1)?.look === look) spans.at(-1).text += part;
    else if (part) spans.push({ text: part, look });
  };
  let style = {};
  let at = 0;
  for (const { index, 0: sequence, 1: codes } of text.matchAll(SGR)) {
    add(text.slice(at, index), lookOf(style));
    at = index;
    style = spans.length < MOST_SPANS ? changed(style, codes) : {};
    if (spans.length >= MOST_SPANS) break;
    at += sequence.length;
  }
  add(text.slice(at), lookOf(style));
  return spans;
}

function changed(style, codes) {
  let now = { ...style };
  const list = codes.split(";");
  for (let place = 0; place < list.length; place += 1) {
    const [first, ...own] = list[place].split(":"); // 38:2::1:2:3 has its numbers with it, 38;2;1;2;3 behind it
    const code = Number(first);
    if (code === 38 || code === 48) {
      const behind = list.slice(place + 1, place + (list[place + 1] === "5" ? 3 : 5));
      const [kind, ...values] = own.length > 0 ? own : behind;
      if (own.length === 0) place += behind.length;
      now[code === 38 ? "fg" : "bg"] = kind === "5" ? indexed(Number(values[0])) : nearest(...values.slice(-3).map(Number));
    } else if (code === 0) now = {};
    else if (ON.has(code)) now[ON.get(code)] = own[0] !== "0";
    else if (OFF.has(code)) now[OFF.get(code)] = false;
    else if (code === 39) delete now.fg;
    else if (code === 49) delete now.bg;
    else if (/^([34]|9|10)[0-7]$/.test(first)) {
      now[/^[39]/.test(first) ? "fg" : "bg"] = code === 90 || code === 100 ? "grey" : NAMES[code % 10];
    }
  }
  return now;
}

function lookOf({ fg, bg, reverse, ...faces }) {
  const [text, ground] = reverse ? [bg, fg ?? "grey"] : [fg, bg];
  const names = Object.keys(faces).filter((name) => faces[name]).sort();
  return [text && `ansi-${text}`, ground && `on-${ground}`, ...names.map((name) => `ansi-${name}`)].filter(Boolean).join(" ");
}

/** The name of one of 256 colours; none for what is no such number. */
function indexed(number) {
  if (!(number < 256)) return undefined;
  if (number < 16) return number === 8 ? "grey" : NAMES[number % 8];
  if (number >= 232) return nearest(...Array(3).fill(8 + 10 * (number - 232)));
  const place = number - 16;
  return nearest(CUBE[Math.floor(place / 36)], CUBE[Math.floor(place / 6) % 6], CUBE[place % 6]);
}

/** The name that comes nearest to red, green and blue of 0 to 255; none for what is no colour. */
function nearest(red, green, blue) {
  const most = Math.max(red, green, blue);
  const range = most - Math.min(red, green, blue);
  if (!(most <= 255)) return undefined;
  if (range < 40) return most < 64 ? "black" : most < 190 ? "grey" : "white";
  const sixth = most === red ? (green - blue) / range : most === green ? 2 + (blue - red) / range : 4 + (red - green) / range;
  return HUES[(Math.round(sixth) + 6) % 6];
}
