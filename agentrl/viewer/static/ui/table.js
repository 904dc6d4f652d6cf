/**
 * Table: any number of rows of which only those in sight exist; rows come in blocks as they are
 * scrolled to. A grid for readers of screens, moved by j and k, the arrows, page and end keys.
 */
import { useEffect, useLayoutEffect, useRef, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { useKeys } from "../lib/keys.js";
import { WithoutColumn } from "./column_choice.js";
import { useWatch } from "./virtual_list.js";

const ROW = 30; // pixels, as in app.css
const BLOCK = 100; // rows asked for at once
const SPARE = 8; // rows drawn beyond each edge
const MOST_PIXELS = 15_000_000; // a browser's limit of height is about 17 million

/**
 * @typedef {object} Column
 * @property {string} name
 * @property {string} title
 * @property {string} width of a CSS grid's track
 * @property {boolean} [number] whether it is set to the right
 * @property {boolean} [sortable]
 * @property {string} [help]
 * @property {() => void} [onRemove] takes the column away
 * @property {(row: object, index: number) => any} cell what is shown
 */

/**
 * @param {object} props
 * @param {string} props.label
 * @param {Column[]} props.columns
 * @param {number} props.total
 * @param {ReturnType<typeof useBlocks>} props.blocks
 * @param {string} props.sort a column's name, "-" before it for descending
 * @param {(name: string) => void} props.onSort
 * @param {number} props.active index of the active row, -1 for none
 * @param {(index: number) => void} props.onActive
 * @param {(row: object, index: number) => void} props.onOpen
 * @param {(row: object) => string} [props.keyOf] what tells rows apart, by default their `id`
 * @param {(row: object) => boolean} [props.isMarked]
 */
export function Table(props) {
  const { label, columns, total, blocks, active, onActive, onOpen } = props;
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const height = Math.min(total * ROW, MOST_PIXELS);
  const scale = total * ROW > MOST_PIXELS ? (total * ROW - view.height) / (height - view.height) : 1;
  const first = Math.max(0, Math.floor((view.top * scale) / ROW) - SPARE);
  const last = Math.min(total, first + Math.ceil(view.height / ROW) + 2 * SPARE);
  useWatch(box, () => setView({ top: box.current.scrollTop, height: box.current.clientHeight }));
  useEffect(() => blocks.need(first, last), [first, last, blocks.version, total]);
  const inView = Math.max(1, Math.floor((view.height - ROW) / ROW));
  const show = (index) => {
    const place = Math.max(0, Math.min(total - 1, index));
    onActive(place);
    reveal(box.current, place, inView, scale);
  };
  const isActive = useAnchor(box, props, scale);
  useKeys("List", movesOf({ active, total, inView, show, open: () => openAt(blocks, active, isActive, onOpen) }));
  useLayoutEffect(() => {
    if (active >= 0 && active < total) reveal(box.current, active, inView, scale);
  }, [total === 0]);
  const indices = Array.from({ length: Math.max(0, last - first) }, (_, offset) => first + offset);
  return html`
    <div class=${blocks.isStale ? "grid stale" : "grid"} role="grid" aria-busy=${blocks.isStale} aria-label=${label} aria-rowcount=${total + 1} aria-colcount=${columns.length}
      tabindex="0" aria-activedescendant=${active >= first && active < last ? rowId(active) : undefined}
      ref=${box} style=${{ "--columns": columns.map(({ width }) => width).join(" "), "--least": `${leastOf(columns)}px` }}>
      <${Header} ...${props} />
      <div role="rowgroup" class="grid-body" style=${{ height: `${height}px` }}>
        ${indices.map((index) => {
          const row = blocks.at(index);
          const top = scale === 1 ? index * ROW : view.top + index * ROW - view.top * scale;
          return html`<${Row} key=${index} index=${index} row=${row} top=${top} columns=${columns}
            active=${index === active} marked=${Boolean(row && props.isMarked?.(row))}
            onOpen=${onOpen} onActive=${onActive} />`;
        })}
      </div>
    </div>
  `;
}

/**
 * Holds what is read where rows come or go above it: the active row stays the same row, and what is in sight stays
 * where it is. At the top, with no active row in sight, new rows are let in.
 * @returns {(row: object) => boolean} whether a row is the active one, and not another at its place
 */
function useAnchor(box, { blocks, active, onActive, keyOf = idOf }, scale) {
  const inSight = useRef({ index: -1, key: "" });
  const chosen = useRef({ index: -1, key: "" });
  useLayoutEffect(() => {
    const element = box.current;
    const top = Math.ceil((element.scrollTop * scale) / ROW);
    const isActiveInSight = active >= top && active < top + element.clientHeight / ROW - 1;
    const from = isActiveInSight ? active : top > 0 ? top : -1;
    const by = placeNow(inSight.current, from, blocks, keyOf) - from;
    if (by !== 0) element.scrollTop += (by * ROW) / scale;
    const place = placeNow(chosen.current, active, blocks, keyOf);
    if (place !== active) onActive(place);
  });
  return (row) => chosen.current.key === "" || keyOf(row) === chosen.current.key;
}

/** Where the row is now that was at `index` when it was last looked for; `held` remembers it. */
function placeNow(held, index, blocks, keyOf) {
  const row = index >= 0 ? blocks.at(index) : undefined;
  const key = row ? keyOf(row) : "";
  if (index !== held.index) Object.assign(held, { index, key });
  else held.key ||= key;
  if (!key || key === held.key) return index;
  const place = blocks.find((one) => keyOf(one) === held.key);
  if (place < 0) return index; // its block is on its way, or it is gone
  held.index = place;
  return place;
}

const idOf = (row) => row.id;

/** The least width of all columns with the gaps between them, in pixels. */
function leastOf(columns) {
  return columns.reduce((sum, { width }) => sum + Number(/\d+/.exec(width)) + 10, 14);
}

function Header({ columns, sort, onSort }) {
  return html`
    <div role="rowgroup" class="grid-head">
      <div role="row" class="grid-row" aria-rowindex="1">
        ${columns.map(({ name, title, number, sortable, help, onRemove }) => {
          const order = sort === name ? "ascending" : sort === `-${name}` ? "descending" : "none";
          const arrow = { ascending: " ↑", descending: " ↓", none: "" }[order];
          return html`<div key=${name} role="columnheader" aria-label=${title} class=${number ? "num" : ""} title=${help}
            aria-sort=${sortable ? order : undefined}>
            ${sortable ? html`<button class="plain" onClick=${() => onSort(name)}>${title}${arrow}</button>` : title}
            ${onRemove && html`<${WithoutColumn} title=${title} onRemove=${onRemove} />`}
          </div>`;
        })}
      </div>
    </div>
  `;
}

function Row({ index, row, top, columns, active, marked, onOpen, onActive }) {
  const click = (event) => {
    onActive(index);
    const own = event.target.closest("a, button, input");
    if (row && !own && !event.ctrlKey && !event.metaKey && !hasSelection()) onOpen(row, index);
  };
  return html`
    <div role="row" id=${rowId(index)} class=${`grid-row${active ? " active" : ""}${marked ? " marked" : ""}`}
      aria-rowindex=${index + 2} aria-selected=${active} style=${{ transform: `translateY(${top}px)` }} onClick=${click}>
      ${columns.map(
        ({ name, number, cell }) => html`<div key=${name} role="gridcell" class=${number ? "num" : ""}>
          ${row ? cell(row, index) : html`<span class="ghost"></span>`}
        </div>`,
      )}
    </div>
  `;
}

/**
 * The rows of a table, in blocks. What was shown stays until its successor is there, also where
 * another key has no rows, such as a query that is none.
 * @param {(offset: number, limit: number, signal: AbortSignal) => Promise<{rows: object[], total: number}>} load
 * @param {string} key what the rows depend on: another key is another table
 * @param {(page: {total: number}) => void} onPage called with each answer
 * @param {(error: Error) => void} onError
 */
export function useBlocks(load, key, onPage, onError) {
  const state = useRef(null);
  const [, redraw] = useState(0);
  const [version, setVersion] = useState(0);
  if (state.current?.key !== key) {
    const last = state.current;
    last?.abort.abort();
    const before = last && (last.isAnswered ? last.blocks : last.before);
    state.current = { key, blocks: new Map(), before, isAnswered: false, asked: new Map(), fresh: 0, abort: new AbortController() };
  }
  const now = state.current;
  useEffect(() => () => state.current.abort.abort(), []);
  const ask = (number) => {
    if (now.asked.get(number) === now.fresh) return;
    now.asked.set(number, now.fresh);
    load(number * BLOCK, BLOCK, now.abort.signal).then(
      (page) => {
        if (state.current !== now) return;
        now.blocks.set(number, page.rows);
        now.isAnswered = true;
        onPage(page);
        redraw((count) => count + 1);
      },
      (error) => {
        if (state.current !== now || now.abort.signal.aborted) return;
        now.asked.delete(number);
        onError(error);
      },
    );
  };
  return {
    version: `${key}\u0000${version}`,
    isStale: !now.isAnswered && Boolean(now.before),
    at: (index) => {
      const blocks = now.isAnswered ? now.blocks : (now.before ?? now.blocks);
      return blocks.get(Math.floor(index / BLOCK))?.[index % BLOCK];
    },
    /** The index of the first loaded row that is wanted, -1 where none is. */
    find: (isWanted) => {
      for (const [number, rows] of [...now.blocks].sort(([a], [b]) => a - b)) {
        const place = rows.findIndex(isWanted);
        if (place >= 0) return number * BLOCK + place;
      }
      return -1;
    },
    need: (first, last) => {
      for (let number = Math.floor(first / BLOCK); number * BLOCK < Math.max(last, 1); number += 1) ask(number);
    },
    /** Asks anew for what is in sight; the rest when it comes into sight. */
    refresh: () => {
      now.fresh += 1;
      setVersion((count) => count + 1);
    },
  };
}

function movesOf({ active, total, inView, show, open }) {
  const next = () => show(active + 1);
  const previous = () => show(active < 0 ? 0 : active - 1);
  if (total === 0) return [];
  return [
    { key: "j", help: "next row", run: next },
    { key: "k", help: "previous row", run: previous },
    { key: "ArrowDown", help: "", run: next },
    { key: "ArrowUp", help: "", run: previous },
    { key: "PageDown", help: "a page down", run: () => show(active + inView) },
    { key: "PageUp", help: "a page up", run: () => show(active - inView) },
    { key: "Home", help: "first row", run: () => show(0) },
    { key: "End", help: "last row", run: () => show(total - 1) },
    { key: "Enter", help: "open the row", run: open },
  ];
}

function openAt(blocks, index, isActive, onOpen) {
  const row = index >= 0 ? blocks.at(index) : undefined;
  if (row && isActive(row)) onOpen(row, index);
}

function reveal(box, index, inView, scale) {
  const top = box.scrollTop * scale;
  const low = index * ROW;
  if (low < top) box.scrollTop = low / scale;
  else if (low > top + (inView - 1) * ROW) box.scrollTop = (low - (inView - 1) * ROW) / scale;
}

function rowId(index) {
  return `row-${index}`;
}

function hasSelection() {
  return String(getSelection()).length > 0;
}
