/** State: the environment's state and the sandbox's files after each turn, with what changed. */
import { html } from "../../lib/html.js";
import { useEffect, useMemo, useRef, useState } from "../../vendor/hooks.js";
import { bytes } from "../../lib/format.js";
import { VirtualList } from "../../ui/virtual_list.js";
import { readBlob } from "../parts/blob.js";
import { DiffView } from "../parts/diff_view.js";
import { languageOf } from "../parts/highlight.js";
import { LongText } from "../parts/long_text.js";
import { Empty, Failure } from "../parts/notice.js";
import { StoredImage } from "../parts/stored_image.js";
import { useResource } from "../../lib/resource.js";
import { showUnseen } from "../../lib/unseen.js";
import { shortName } from "../tokens/display.js";
import { filesAt, formOf, hasStates, parsed, prettyJson, stepsOf } from "./state_model.js";
import { StateValue } from "./state_value.js";

/** @param {{run: string, answer: object, turn: number | null, onTurn: (index: number) => void}} props */
export function StateTab({ run, answer, turn, onTurn }) {
  const steps = useMemo(() => stepsOf(answer), [answer]);
  const [path, setPath] = useState(null); // null: the environment's state
  const [diff, setDiff] = useState(true);
  const [isReset, setReset] = useState(false); // the step before turn 0, which no turn of the address names
  useEffect(() => setReset(false), [turn]);
  if (!hasStates(steps)) {
    return html`<${Empty} missing=${answer.missing} only=${["state", "files"]}>No state is recorded.<//>`;
  }
  const ofTurn = steps.findIndex((step) => step.turn === turn);
  const at = isReset ? 0 : turn === null ? steps.length - 1 : Math.max(0, ofTurn);
  const show = (step) => {
    setReset(step === 0);
    if (step > 0) onTurn(steps[step].turn);
  };
  const files = filesAt(steps, at);
  const file = files.find((entry) => entry.path === path) ?? null;
  const shown = file
    ? { name: file.path, now: file.blob, before: file.before, changed: file.changed }
    : { name: "state", now: steps[at].state, before: steps[at - 1]?.state, changed: true };
  return html`<div class="state">
    <div class="tok-bar">
      <label>
        after
        <input
          type="range"
          min="0"
          max=${steps.length - 1}
          value=${at}
          aria-label="Step"
          aria-valuetext=${nameOf(steps[at])}
          onInput=${(event) => show(Number(event.target.value))}
        />
        <b>${nameOf(steps[at])}</b>
      </label>
      <label><input type="checkbox" checked=${diff} onChange=${() => setDiff(!diff)} /> differences</label>
    </div>
    <div class="state-main">
      <${Files}
        files=${files}
        path=${file ? path : null}
        hasState=${steps[at].state !== null}
        onPath=${setPath}
      />
      <div class="state-view pad" tabindex="0" role="group" aria-label="State">
        <${BlobView}
          key=${shown.name}
          run=${run}
          shown=${shown}
          diff=${diff && shown.changed}
          json=${!file}
        />
      </div>
    </div>
  </div>`;
}

const nameOf = (step) => (step.turn === null ? "reset" : `turn ${step.turn}`);

function Files({ files, path, hasState, onPath }) {
  const box = useRef(null);
  const all = hasState ? [null, ...files] : files;
  const entry = (place) => {
    const file = all[place];
    const own = file?.path ?? null;
    const sign = !file?.changed ? "" : file.blob === null ? "deleted" : file.before ? "changed" : "new";
    return html`<li key=${own ?? "\u0000state"}>
      <button type="button" aria-current=${own === path ? "true" : null} class=${sign && `file-${sign}`} onClick=${() => onPath(own)}>
        ${file ? html`${shortName(own, 120)} <span class="small">${sign}</span>` : "environment's state"}
      </button>
    </li>`;
  };
  return html`<div class="files" ref=${box} role="group" aria-label="Files and state" tabindex="0">
    <${VirtualList} box=${box} tag="ul" count=${all.length} estimate=${() => 25} entry=${entry} />
  </div>`;
}

function BlobView({ run, shown, diff, json }) {
  const inputs = [run, shown.now?.sha256 ?? null, shown.before?.sha256 ?? null];
  const load = () => Promise.all([readBlob(run, shown.now), readBlob(run, shown.before)]);
  const loaded = useResource(load, inputs);
  if (loaded.error) return html`<${Failure} error=${loaded.error} onRetry=${loaded.reload} />`;
  if (!loaded.value || loaded.loading) return html`<${Empty}>Reading …<//>`;
  const [now, before] = loaded.value;
  const title = html`<h2>
    ${shortName(shown.name, 300)} <span class="muted">${shown.now ? bytes(now.size) : "deleted"}</span>
  </h2>`;
  if (now.image) return html`${title}<${StoredImage} image=${shown.now} run=${run} />`;
  if (now.text === null)
    return html`${title}
      <p class="muted">${showUnseen(now.note)}</p>`;
  const value = json ? parsed(now.text) : undefined;
  const differs = diff && before.text !== null && shown.before !== null && shown.before !== undefined;
  const texts = json ? [prettyJson(parsed(before.text)), prettyJson(value)] : [before.text, now.text];
  const changes =
    differs &&
    html`<${DiffView} before=${texts[0]} after=${texts[1]} label=${`Changes of ${shortName(shown.name)}`} />`;
  if (!json) return html`${title}${changes}<${LongText} text=${now.text} mono limit=${20_000} lang=${languageOf(shown.name)} />`;
  const seen = html`<${StateValue} value=${value} run=${run} />`;
  // a form is there to be looked at; other JSON is read by its changes
  if (formOf(value) === "json") return html`${title}${changes}${seen}`;
  return html`${title}${seen}${
    changes &&
    html`<h3>changes</h3>
      ${changes}`
  }`;
}
