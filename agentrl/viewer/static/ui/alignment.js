/** Alignment view: sequences under each other in blocks, differences marked, equal stretches folded. */
import { useEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { blocksOf, cellsOf } from "../lib/columns.js";
import { number } from "../lib/format.js";
import { useKeys } from "../lib/keys.js";
import { go } from "../lib/router.js";
import { Empty, Failed } from "./state.js";
import { useWatch } from "./virtual_list.js";

const LINE = 21; // pixels, as in app.css
const LABEL = 168; // pixels of the names at the left
const BETWEEN = 14; // pixels between blocks
const FOLDED = 30; // pixels of a folded stretch
const SPARE = 400; // pixels drawn beyond each edge
const POLICY = 1;

/**
 * @typedef {object} AlignedSequence
 * @property {string} id
 * @property {string} label a short name
 * @property {Int32Array} ids
 * @property {Int8Array} kinds
 * @property {Int32Array} turn
 * @property {string[]} pieces
 */

/**
 * The alignment of sequences, made in a worker; null until it is there.
 * @param {AlignedSequence[]} sequences
 * @param {number} reference
 */
export function useAlignment(sequences, reference) {
  const [state, setState] = useState({ of: null, reference: -1, alignment: null, error: null });
  useEffect(() => {
    if (sequences.length === 0) return undefined;
    const worker = new Worker(new URL("../workers/align.js", import.meta.url), { type: "module" });
    const fail = (text) => setState({ of: sequences, reference, alignment: null, error: new Error(text) });
    worker.onmessage = ({ data }) => {
      if (data.error) fail(data.error);
      else setState({ of: sequences, reference, alignment: data.alignment, error: null, ms: data.ms });
    };
    worker.onerror = (event) => fail(event.message || "the worker that aligns did not start");
    const plain = sequences.map(({ ids, kinds, turn }) => ({ ids, kinds, turn }));
    worker.postMessage({ number: 0, sequences: plain, reference });
    return () => worker.terminate();
  }, [sequences, reference]);
  const isCurrent = state.of === sequences && state.reference === reference;
  return isCurrent ? state : { alignment: null, error: null };
}

/**
 * @param {object} props
 * @param {AlignedSequence[]} props.sequences
 * @param {number} props.reference
 * @param {{alignment: object|null, error: Error|null}} props.state of `useAlignment`
 * @param {(sequence: AlignedSequence, place: number) => string} props.hrefOf address of a token
 */
export function AlignmentView({ sequences, reference, state, hrefOf }) {
  const { alignment, error } = state;
  if (error) return html`<${Failed} error=${error} />`;
  if (!alignment) return html`<${Empty}>Aligning…<//>`;
  return html`<${Blocks} sequences=${sequences} reference=${reference} alignment=${alignment} hrefOf=${hrefOf} />`;
}

function Blocks({ sequences, reference, alignment, hrefOf }) {
  const box = useRef(null);
  const [fold, setFold] = useState(true);
  const [at, setAt] = useState(-1);
  const [view, setView] = useState({ top: 0, height: 600, chars: 0 });
  useSize(box, setView);
  const pieces = useMemo(() => sequences.map((one) => one.pieces), [sequences]);
  const blocks = useMemo(
    () => (view.chars > 0 ? placed(blocksOf(alignment, pieces, view.chars, fold), sequences.length) : []),
    [alignment, pieces, view.chars, fold],
  );
  const places = useMemo(() => differences(alignment.differs), [alignment]);
  const jump = (index) => {
    if (places.length === 0) return;
    const next = Math.max(0, Math.min(places.length - 1, index));
    setAt(next);
    const block = blocks.find(({ columns, folded }) => !folded && columns.at(-1) >= places[next]);
    if (block) box.current.scrollTop = Math.max(0, block.top - 40);
  };
  const mostly = useRef(-1);
  useEffect(() => {
    if (blocks.length > 0 && mostly.current !== alignment) {
      mostly.current = alignment;
      jump(0);
    }
  }, [blocks]);
  useKeys("Alignment", [
    { key: "n", help: "next difference", run: () => jump(at + 1) },
    { key: "N", help: "previous difference", run: () => jump(at - 1) },
    { key: "f", help: "first divergence", run: () => jump(0) },
    { key: "e", help: "fold or show equal stretches", run: () => setFold(!fold) },
  ]);
  const height = blocks.length > 0 ? blocks.at(-1).bottom : 0;
  const shown = blocks.filter(({ top, bottom }) => bottom > view.top - SPARE && top < view.top + view.height + SPARE);
  const open = (event) => {
    const cell = event.target.closest("[data-place]");
    if (!cell || String(getSelection())) return;
    const sequence = sequences[Number(cell.dataset.sequence)];
    go(hrefOf(sequence, Number(cell.dataset.place)));
  };
  return html`
    <div class="head alignment-head">
      <span class="muted" role="status">
        ${places.length === 0 ? "All tokens are equal." : `${number(places.length)} differing ${places.length === 1 ? "stretch" : "stretches"}${at >= 0 ? `, at ${at + 1}` : ""}`}
      </span>
      <span class="legend small">
        <i class="look policy">sampled</i> <i class="look given">given</i> <i class="look differs">differs</i>
        <i class="look first">first divergence</i>
      </span>
      <div class="end">
        <button class="button" onClick=${() => jump(0)} disabled=${places.length === 0}>First divergence <kbd>f</kbd></button>
        <button class="button" onClick=${() => jump(at - 1)} disabled=${at <= 0} aria-label="Previous difference">↑</button>
        <button class="button" onClick=${() => jump(at + 1)} disabled=${at >= places.length - 1} aria-label="Next difference">↓</button>
        <button class="button" aria-pressed=${fold} onClick=${() => setFold(!fold)}>Fold equal <kbd>e</kbd></button>
      </div>
    </div>
    <div class="alignment" ref=${box} tabindex="0" role="region" aria-label="Aligned tokens" onClick=${open}>
      <span class="alignment-ruler mono" aria-hidden="true">${"0".repeat(50)}</span>
      <div class="alignment-body" style=${{ height: `${height}px` }}>
        ${shown.map((block) => html`<${Block} key=${block.columns[0]} block=${block} sequences=${sequences}
          reference=${reference} alignment=${alignment} current=${places[at] ?? -1} onUnfold=${() => setFold(false)} />`)}
      </div>
    </div>
  `;
}

function Block({ block, sequences, reference, alignment, current, onUnfold }) {
  const style = { transform: `translateY(${block.top}px)` };
  if (block.folded) {
    return html`<div class="fold" style=${style}>
      <button class="plain muted" onClick=${onUnfold}>⋯ ${number(block.folded)} equal tokens</button>
    </div>`;
  }
  const { rows, first } = alignment;
  return html`
    <div class="block" style=${style}>
      ${sequences.map((sequence, index) => {
        const look = lookOf(sequence, sequences[reference], rows[reference], first, current, index === reference);
        return html`<div key=${sequence.id} class="block-row">
          <span class=${index === reference ? "block-label reference" : "block-label"}><bdi>${sequence.label}</bdi></span>
          <span class="block-cells" dir="ltr">${cellsOf(block, rows[index], look, sequence.pieces).map((cell, place) =>
            html`<span key=${place} class=${`look ${cell.look}`} data-sequence=${index} data-place=${cell.place >= 0 ? cell.place : undefined}>${cell.text}</span>`,
          )}</span>
        </div>`;
      })}
    </div>
  `;
}

/** The classes of a token: what made it, whether it is unlike the reference, where divergence begins. */
function lookOf({ ids, kinds }, base, baseRow, first, current, isReference) {
  return (place, column) => {
    const begins = column === first ? " first" : column === current ? " current" : "";
    if (place < 0) return `gap${begins}`;
    const kind = kinds[place] === POLICY ? "policy" : "given";
    const other = baseRow[column];
    const differs = !isReference && (other < 0 || base.ids[other] !== ids[place]);
    return `${kind}${differs ? " differs" : ""}${begins}`;
  };
}

/** The first column of each differing stretch. */
function differences(differs) {
  const found = [];
  for (let i = 0; i < differs.length; i += 1) if (differs[i] && !(i > 0 && differs[i - 1])) found.push(i);
  return found;
}

/** The blocks with their places from above. */
function placed(blocks, count) {
  let top = 0;
  return blocks.map((block) => {
    const own = block.folded ? FOLDED : count * LINE + BETWEEN;
    top += own;
    return { ...block, top: top - own, bottom: top };
  });
}

/** Keeps what is seen of the box, and how many characters a row has. */
function useSize(box, setView) {
  useWatch(box, () => {
    const ruler = box.current.querySelector(".alignment-ruler");
    const character = ruler.getBoundingClientRect().width / 50;
    const chars = Math.max(20, Math.floor((box.current.clientWidth - LABEL - 24) / character));
    setView({ top: box.current.scrollTop, height: box.current.clientHeight, chars });
  });
}
