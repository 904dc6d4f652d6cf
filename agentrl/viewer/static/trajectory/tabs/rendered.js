/** Rendered: the exact text that the engine was given and made, by the kind of its tokens. */
import { html } from "../../lib/html.js";
import { useMemo, useRef, useState } from "../../vendor/hooks.js";
import { line } from "../../lib/format.js";
import { VirtualList } from "../../ui/virtual_list.js";
import { ask } from "../data.js";
import { CopyButton } from "../parts/code_block.js";
import { cutAt, More } from "../parts/long_text.js";
import { Empty, Failure, NO_TOKENS } from "../parts/notice.js";
import { useResource } from "../../lib/resource.js";
import { KINDS } from "../token_model.js";
import { showUnseen } from "../../lib/unseen.js";

const FIRST = 20_000;
const STEP = 100_000;

/** @param {{run: string, answer: object, turn: number | null}} props */
export function RenderedTab({ run, answer, turn }) {
  const id = answer.summary.id;
  const loaded = useResource(() => ask(run, "rendered", { id }), [run, id]);
  const pane = useRef(null);
  if (loaded.error?.status === 404) return html`<${Empty}>There is no exact text: ${showUnseen(loaded.error.message)}<//>`;
  if (loaded.error) return html`<${Failure} error=${loaded.error} onRetry=${loaded.reload} />`;
  if (loaded.loading || !loaded.value) return html`<${Empty}>Decoding the tokens …<//>`;
  const { sequences } = loaded.value;
  if (!sequences?.some(({ text }) => text)) return html`<${Empty}>${NO_TOKENS}<//>`;
  return html`<div class="rendered" ref=${pane} tabindex="0" role="group" aria-label="Exact text">
    <p class="kind-key">${KINDS.map((kind) => html`<span class="kind-${kind}">${kind}</span>`)}</p>
    ${numbered(sequences, answer.turns).map(
      ([number, sequence]) => html`<${Sequence} key=${`${id} ${number}`} pane=${pane} sequence=${sequence} index=${number} current=${turn} />`,
    )}
  </div>`;
}

function Sequence({ pane, sequence, index, current }) {
  const groups = useMemo(() => byTurn(sequence.spans), [sequence]);
  const goal = useMemo(() => groups.findIndex(({ turn }) => turn === current), [groups, current]);
  const entry = (place) => {
    const { turn, spans } = groups[place];
    return html`<div key=${place} class="rendered-turn" data-turn=${turn}>
      <span class="turn-no">${turn}</span>
      <div class="rendered-text">
        ${spans.map(
          ([start, end, kind]) =>
            html`<${Span} key=${start} text=${sequence.text.slice(start, end)} kind=${kind} turn=${turn} />`,
        )}
      </div>
    </div>`;
  };
  return html`<section role="group" aria-label=${`Sequence ${index}`}>
    <h2>
      sequence ${index} <span class="muted">turns ${line((sequence.turns ?? []).join(", "), 400)}</span>
      <${CopyButton} text=${sequence.text} />
    </h2>
    <${VirtualList} box=${pane} count=${groups.length} estimate=${() => 80} entry=${entry} goal=${goal} />
  </section>`;
}

function Span({ text, kind, turn }) {
  const [shown, setShown] = useState(FIRST);
  const end = cutAt(text, shown);
  return html`<span class="kind-${kind}" title=${`${kind}, turn ${turn}`}
      >${showUnseen(text.slice(0, end))}</span
    ><${More} shown=${end} total=${text.length} onMore=${() => setShown(shown + STEP)} whole=${text} />`;
}

/**
 * @param {[number, number, string, number][]} spans start, end, kind, turn
 * @returns {{turn: number, spans: [number, number, string, number][]}[]} neighbours of one turn
 */
export function byTurn(spans) {
  const groups = [];
  for (const span of spans) {
    if (groups.at(-1)?.turn !== span[3]) groups.push({ turn: span[3], spans: [] });
    groups.at(-1).spans.push(span);
  }
  return groups;
}

/** Sequences with their numbers, which their last turns have, in order. */
function numbered(sequences, turns) {
  const pairs = sequences.map((sequence, place) => {
    return [turns[sequence.turns?.at(-1)]?.sequence ?? place, sequence];
  });
  return pairs.sort(([one], [other]) => one - other);
}
