/** Notes: what people wrote about the trajectory, a turn or a range of tokens. */
import { html } from "../lib/html.js";
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { del, ofRun, post } from "../lib/api.js";
import { link } from "../lib/router.js";
import { ago } from "../lib/format.js";
import { Failure } from "./parts/notice.js";
import { LongText } from "./parts/long_text.js";
import { shortName } from "./tokens/display.js";

/**
 * @param {object} props
 * @param {string} props.run
 * @param {string} props.id
 * @param {object[]} props.notes
 * @param {number} props.recordedAt of the record that is shown: a note may be about an older one
 * @param {{turn?: number, tokens?: [number, number]} | null} props.target what a new note is about;
 *   null shows no form
 * @param {(target: object | null) => void} props.onTarget
 * @param {() => void} props.onChange after a note was written or deleted
 */
export function Notes({ run, id, notes, recordedAt, target, onTarget, onChange }) {
  const [error, setError] = useState(null);
  const remove = (note) => del(ofRun(run, `notes/${encodeURIComponent(note.id)}`)).then(onChange, setError);
  return html`<section class="notes" aria-label="Notes">
    <h2>
      notes
      <button type="button" class="quiet" onClick=${() => onTarget({})}>add a note</button>
    </h2>
    ${error && html`<${Failure} error=${error} />`}
    ${target && html`<${NoteForm} key=${JSON.stringify(target)} run=${run} id=${id} target=${target} onDone=${() => onTarget(null)} onChange=${onChange} />`}
    ${notes.map((note) => html`<${Note} key=${note.id} run=${run} id=${id} note=${note} recordedAt=${recordedAt} onRemove=${remove} />`)}
  </section>`;
}

/** What a note is about, in words. */
export function aboutOf({ turn, tokens }) {
  const named = turn !== undefined && turn !== null;
  if (tokens) {
    const [start, end] = tokens;
    const range = end - start === 1 ? `token ${start}` : `tokens ${start} to ${end - 1}`;
    return named ? `turn ${turn}, ${range}` : range;
  }
  return named ? `turn ${turn}` : "the trajectory";
}

/** Labels as typed, apart by blanks or commas; each once. */
export function labelsOf(text) {
  return [...new Set(text.split(/[\s,]+/).filter(Boolean))];
}

function NoteForm({ run, id, target, onDone, onChange }) {
  const [labels, setLabels] = useState("");
  const [text, setText] = useState("");
  const [state, setState] = useState({ sending: false, error: null });
  const first = useRef(null);
  useEffect(() => first.current?.focus(), []);
  const send = async (event) => {
    event.preventDefault();
    setState({ sending: true, error: null });
    try {
      const { turn = null, tokens = null } = target;
      await post(ofRun(run, "notes"), { trajectory: id, turn, tokens, labels: labelsOf(labels), text });
      onChange();
      onDone();
    } catch (error) {
      setState({ sending: false, error });
    }
  };
  const empty = !text.trim() && !labelsOf(labels).length;
  return html`<form class="note-form" onSubmit=${send} aria-label="New note">
    <p class="muted">about ${aboutOf(target)}</p>
    <label
      >labels
      <input
        ref=${first}
        value=${labels}
        placeholder="good tool-misuse"
        onInput=${(event) => setLabels(event.target.value)}
    /></label>
    <label
      >text <textarea rows="3" value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
    </label>
    ${state.error && html`<${Failure} error=${state.error} />`}
    <p>
      <button type="submit" disabled=${empty || state.sending}>save</button>
      <button type="button" class="quiet" onClick=${onDone}>cancel</button>
    </p>
  </form>`;
}

function Note({ run, id, note, recordedAt, onRemove }) {
  const tokens = note.tokens ? `${note.tokens[0]}-${note.tokens[1]}` : undefined;
  const place = link("trajectory", { run, id, tab: tokens ? "tokens" : "chat", turn: note.turn, tokens });
  const isOutdated = (note.recorded_at ?? recordedAt) !== recordedAt;
  return html`<article class="note">
    ${isOutdated && html`<p class="small warn">The run played this episode again after this note.</p>`}
    <p class="small">
      <a href=${place}>${aboutOf(note)}</a>
      ${(note.labels ?? []).map((label) => html`<span class="label">${shortName(label)}</span>`)}
      <span class="muted">${shortName(note.user)} ${ago(note.time)}</span>
      <button
        type="button"
        class="quiet"
        aria-label=${`Delete the note about ${aboutOf(note)}`}
        onClick=${() => onRemove(note)}
      >
        delete
      </button>
    </p>
    ${note.text && html`<${LongText} text=${note.text} limit=${1000} />`}
  </article>`;
}
