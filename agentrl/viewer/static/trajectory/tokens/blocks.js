/**
 * Token blocks: a scrolling pane of tokens in which only visible blocks are in the document.
 *
 * A block's height is estimated until it is painted, then measured. Where a block above the view
 * turns out taller or shorter, the scroll position moves by as much, so that what is read stays.
 */

import { CLASSES } from "./palette.js";
import { shownPiece } from "./display.js";
import { BlockHeights, estimateLines, partition } from "./partition.js";

const OVERSCAN = 120; // pixels painted above and below the view
const HEAD_HEIGHT = 34;
const BLOCK_MARGIN = 2;
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\ud802\ud803\ud83a\ud83b]/;

/** Paints one pane; it holds no state of the page but what its setters are given. */
export class TokenBlocks {
  /**
   * @param {HTMLElement} pane scrolls, and has a size
   * @param {object} events `hover(token | null)`, `pick(token, extend)`, `head(turn) -> string`
   */
  constructor(pane, events) {
    this.pane = pane;
    this.events = events;
    this.before = document.createElement("div");
    this.list = document.createElement("div");
    this.list.className = "tok-list";
    this.after = document.createElement("div");
    pane.replaceChildren(this.before, this.list, this.after);
    this.painted = new Map(); // block index -> its element
    this.levels = new Uint8Array(0);
    this.selected = [-1, -1];
    this.marked = () => false;
    this.frame = 0;
    this.closers = [];
    this.listen();
  }

  listen() {
    const on = (name, handle, options) => {
      this.pane.addEventListener(name, handle, options);
      this.closers.push(() => this.pane.removeEventListener(name, handle, options));
    };
    on("scroll", () => this.schedule(), { passive: true });
    on("pointerover", (event) => this.events.hover(tokenOf(event.target)));
    on("pointerleave", () => this.events.hover(null));
    on("click", (event) => {
      const token = tokenOf(event.target);
      if (token !== null) this.events.pick(token, event.shiftKey);
    });
    const watch = new ResizeObserver(() => this.resized());
    watch.observe(this.pane);
    this.closers.push(() => watch.disconnect());
  }

  close() {
    cancelAnimationFrame(this.frame);
    for (const close of this.closers) close();
    this.pane.replaceChildren();
  }

  /**
   * Shows other tokens.
   * @param {import("../token_model.js").TokenModel} model
   * @param {number | null} sequence the one to show, null for all
   * @param {Uint8Array} levels an index of CLASSES a token
   */
  show(model, sequence, levels) {
    const isSame = this.sequence === sequence && isSameTokens(this.model, model);
    this.model = model;
    this.sequence = sequence;
    this.levels = levels;
    if (isSame) return this.paint(); // more was learned of them: the reader stays where they are
    this.blocks = partition(model, sequence);
    this.estimate();
    this.clear();
    this.pane.scrollTop = 0;
    this.paint();
  }

  /**
   * Colours and frames what is painted anew.
   * @param {Uint8Array} levels an index of CLASSES a token
   * @param {(token: number) => boolean} marked which tokens are beyond the threshold
   * @param {[number, number]} selected the selected tokens `[start, end)`; -1 for none
   */
  dressAll(levels, marked, selected) {
    this.levels = levels;
    this.marked = marked;
    this.selected = selected;
    for (const element of this.painted.values()) {
      for (const span of element.lastChild.children) this.dress(span);
    }
  }

  /** @param {number} token scrolls it to a third of the view, where it is not in view */
  reveal(token) {
    const index = this.blockOf(token);
    if (index < 0) return;
    for (let tries = 0; tries < 3; tries++) {
      const span = this.spanOf(index, token);
      const top = span ? this.offsetOf(span) : this.heights.top(index);
      const view = this.pane.clientHeight;
      const seen = top >= this.pane.scrollTop && top <= this.pane.scrollTop + view - 40;
      if (span && seen) return;
      this.pane.scrollTop = Math.max(0, top - view / 3);
      this.paint();
    }
  }

  /** @param {number} turn scrolls its head to the top */
  revealTurn(turn) {
    const index = this.blocks.findIndex((block) => block.head && this.model.turn[block.start] === turn);
    if (index < 0) return;
    for (let tries = 0; tries < 2; tries++) {
      this.pane.scrollTop = this.heights.top(index);
      this.paint();
    }
  }

  blockOf(token) {
    let low = 0;
    let high = this.blocks.length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      const { start, end } = this.blocks[middle];
      if (token < start) high = middle - 1;
      else if (token >= end) low = middle + 1;
      else return middle;
    }
    return -1;
  }

  spanOf(index, token) {
    const element = this.painted.get(index);
    return element ? element.lastChild.children[token - this.blocks[index].start] : null;
  }

  offsetOf(span) {
    return span.getBoundingClientRect().top - this.pane.getBoundingClientRect().top + this.pane.scrollTop;
  }

  estimate() {
    const { columns, line } = this.measureLine();
    this.width = this.pane.clientWidth;
    this.heights = new BlockHeights(
      this.blocks.map(
        (block) =>
          estimateLines(this.model.pieces, block, columns) * line +
          (block.head ? HEAD_HEIGHT : 0) +
          BLOCK_MARGIN,
      ),
    );
  }

  measureLine() {
    const probe = document.createElement("div");
    probe.className = "tok-block";
    const text = document.createElement("span");
    text.textContent = "0".repeat(40);
    probe.append(text);
    this.list.append(probe);
    const size = text.getBoundingClientRect();
    const style = getComputedStyle(probe);
    const line = parseFloat(style.lineHeight) || 20;
    const inner = probe.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    probe.remove();
    return { columns: Math.max(20, Math.floor(inner / (size.width / 40 || 8))), line };
  }

  resized() {
    if (!this.model || this.pane.clientWidth === this.width) return this.schedule();
    const first = this.blocks[this.heights.at(this.pane.scrollTop)]?.start ?? 0;
    this.estimate();
    this.clear();
    const index = this.blockOf(first);
    this.paint();
    if (index > 0) this.pane.scrollTop = this.heights.top(index);
    this.paint();
  }

  clear() {
    this.painted.clear();
    this.list.replaceChildren();
  }

  schedule() {
    if (this.frame || !this.model) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
    });
  }

  /**
   * Puts the visible blocks into the document, and takes the others out. After a leap those just
   * out of view follow in the next frame. In a pane that is left or hidden every block is 0 high, so that all would
   * fit: nothing is painted until it has a size.
   */
  paint() {
    const view = this.pane.clientHeight;
    if (!this.model || !this.blocks.length || view === 0) return;
    const top = this.pane.scrollTop;
    const leap = !this.painted.has(this.heights.at(top)) && !this.painted.has(this.heights.at(top + view));
    const around = leap ? 0 : OVERSCAN;
    const first = this.heights.at(Math.max(0, top - around));
    let last = this.heights.at(top + view + around);
    this.place(first, last);
    const shift = this.measure(first);
    if (shift !== 0) this.pane.scrollTop = top + shift;
    // blocks that came out shorter than estimated leave room for more
    const room = this.pane.scrollTop + view + around / 2;
    while (last + 1 < this.blocks.length && this.heights.top(last + 1) < room) {
      last += 1;
      this.place(first, last);
      this.measure(first);
    }
    this.before.style.height = `${this.heights.top(first)}px`;
    this.after.style.height = `${this.heights.total - this.heights.top(last + 1)}px`;
    if (leap) this.schedule();
  }

  place(first, last) {
    for (const [index, element] of this.painted) {
      if (index < first || index > last) {
        element.remove();
        this.painted.delete(index);
      }
    }
    let next = this.list.firstChild;
    for (let index = first; index <= last; index++) {
      let element = this.painted.get(index);
      if (!element) {
        element = this.build(this.blocks[index]);
        this.painted.set(index, element);
        this.list.insertBefore(element, next);
      }
      next = element.nextSibling;
    }
  }

  /** Measures what is painted; returns the growth of blocks that lie above the view. */
  measure(first) {
    const top = this.pane.scrollTop;
    let above = 0;
    const sizes = [...this.painted].map(([index, element]) => [index, element.offsetHeight]);
    for (const [index, size] of sizes) {
      const wasAbove = this.heights.top(index) + this.heights.heights[index] <= top;
      const grown = this.heights.measure(index, size);
      if (wasAbove && index >= first) above += grown;
    }
    return above;
  }

  build(block) {
    const element = document.createElement("div");
    element.className = "tok-block";
    if (block.head) {
      const head = document.createElement("div");
      head.className = "tok-head";
      head.textContent = this.events.head(this.model.turn[block.start]);
      element.append(head);
    }
    const text = document.createElement("div");
    text.className = "tok-text";
    for (let token = block.start; token < block.end; token++) {
      const span = document.createElement("span");
      span.token = token;
      span.textContent = shownPiece(this.model.pieces[token], this.model.bytes.get(token));
      if (RIGHT_TO_LEFT.test(span.textContent)) span.dir = "auto"; // its order ends with it
      this.dress(span);
      text.append(span);
    }
    element.append(text);
    return element;
  }

  dress(span) {
    const token = span.token;
    let name = CLASSES[this.levels[token]];
    if (this.marked(token)) name += " over";
    if (token >= this.selected[0] && token < this.selected[1]) name += " sel";
    if (span.className !== name) span.className = name;
  }
}

function isSameTokens(one, other) {
  return Boolean(one) && one.count === other.count && one.ids.every((id, token) => id === other.ids[token]);
}

function tokenOf(target) {
  return target instanceof HTMLElement && target.token !== undefined ? target.token : null;
}
