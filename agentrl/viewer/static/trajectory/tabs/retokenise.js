/** Re-tokenise: recorded ids against those of their text encoded again, each difference named. */
import { html } from "../../lib/html.js";
import { link } from "../../lib/router.js";
import { ask, lanesOf, laneTitle } from "../data.js";
import { Empty, Failure } from "../parts/notice.js";
import { useResource } from "../../lib/resource.js";
import { showUnseen } from "../../lib/unseen.js";
import { shownPiece } from "../tokens/display.js";

const MOST_TEXT = 400;
const MOST_IDS = 60;

/** @param {{run: string, answer: object}} props */
export function RetokeniseTab({ run, answer }) {
  const id = answer.summary.id;
  const lanes = lanesOf(answer.turns);
  // the last turn of a sequence has all of its tokens
  const load = () =>
    Promise.all(lanes.map((lane) => ask(run, "retokenise", { id, turn: lane.turns.at(-1).index })));
  const loaded = useResource(load, [run, id]);
  if (loaded.error && loaded.error.status >= 400 && loaded.error.status < 500) {
    return html`<${Empty}>Nothing is compared: ${showUnseen(loaded.error.message)}<//>`;
  }
  if (loaded.error) return html`<${Failure} error=${loaded.error} onRetry=${loaded.reload} />`;
  if (loaded.loading || !loaded.value) return html`<${Empty}>Encoding the text again …<//>`;
  return html`<div class="retokenise pad" tabindex="0" role="group" aria-label="Re-tokenisation">
    ${loaded.value.map(
      (result, place) =>
        html`<${Result}
          result=${result}
          lane=${lanes.length > 1 ? lanes[place] : null}
          run=${run}
          id=${id}
        />`,
    )}
  </div>`;
}

function Result({ result, lane, run, id }) {
  const { differences = [], equal, template } = result;
  return html`
    ${lane && html`<h2>${laneTitle(lane)}</h2>`}
    <p class=${equal ? "notice good" : "notice warn"}>
      ${
        equal
          ? "The recorded ids are those that encoding their text again gives."
          : `${counted(differences)} between the recorded ids and their text encoded again.`
      }
    </p>
    ${differences.map((one, index) => html`<${Difference} key=${index} one=${one} run=${run} id=${id} />`)}
    <${Template} template=${template} run=${run} id=${id} />
  `;
}

function Difference({ one, run, id }) {
  const end = one.start + (one.recorded?.length || 1);
  const where = link("trajectory", { run, id, tab: "tokens", turn: one.turn, tokens: `${one.start}-${end}` });
  return html`<article class="difference">
    <h2>
      <a href=${where}>turn ${one.turn}, tokens ${one.start} to ${end - 1}</a>
      <span class="warn">${String(one.cause ?? "").replaceAll("_", " ")}</span>
      <span class="muted">${showUnseen(one.why ?? "")}</span>
    </h2>
    <table>
      <thead>
        <tr>
          <td></td>
          <th scope="col">text</th>
          <th scope="col">ids</th>
        </tr>
      </thead>
      <tbody>
        <${Side} name="recorded" text=${one.recorded_text} ids=${one.recorded} />
        <${Side} name="encoded again" text=${one.again_text} ids=${one.again} />
      </tbody>
    </table>
  </article>`;
}

function Side({ name, text, ids = [] }) {
  return html`<tr>
    <th scope="row">${name}</th>
    <td>
      <span class="tok-piece"><span>${shownPiece(String(text ?? "").slice(0, MOST_TEXT))}</span></span>
    </td>
    <td class="ids">
      ${ids.slice(0, MOST_IDS).join(" ")}${ids.length > MOST_IDS ? ` and ${ids.length - MOST_IDS} more` : ""}
    </td>
  </tr>`;
}

function Template({ template, run, id }) {
  if (!template) return null;
  const { equal, missing, differences = [] } = template;
  return html`<section role="group" aria-label="Chat template">
    <h2>the chat template applied anew</h2>
    ${
      equal === null
        ? html`<p class="notice warn">Not compared: ${showUnseen(missing ?? "")}</p>`
        : html`<p class=${equal ? "notice good" : "notice warn"}>
            ${
              equal
                ? "The template gives the ids that the engine was given."
                : `${counted(differences)} between the ids that the engine was given and the template's.`
            }
          </p>`
    }
    ${differences.map((one, index) => html`<${Difference} key=${index} one=${one} run=${run} id=${id} />`)}
  </section>`;
}

function counted(differences) {
  return `${differences.length} difference${differences.length === 1 ? "" : "s"}`;
}
