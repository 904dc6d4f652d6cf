/** Differences: this trajectory against the pinned one, turn by turn. */
import { html } from "../../lib/html.js";
import { useMemo, useRef } from "../../vendor/hooks.js";
import { jsonText } from "../../lib/exact_json.js";
import { number } from "../../lib/format.js";
import { link } from "../../lib/router.js";
import { VirtualList } from "../../ui/virtual_list.js";
import { ask } from "../data.js";
import { DiffView } from "../parts/diff_view.js";
import { Empty } from "../parts/notice.js";
import { useResource } from "../../lib/resource.js";
import { showUnseen } from "../../lib/unseen.js";
import { shortName } from "../tokens/display.js";

/** @param {{run: string, answer: object, other: object | null}} props `other` is the pinned one */
export function DiffTab({ run, answer, other }) {
  if (!other) {
    return html`<${Empty}>
      Nothing to compare with: press <kbd>p</kbd> to pin a trajectory, go to another one, and press
      <kbd>d</kbd>.
    <//>`;
  }
  return html`<${Differences} run=${run} answer=${answer} other=${other} />`;
}

function Differences({ run, answer, other }) {
  const pane = useRef(null);
  const differing = useMemo(() => {
    const count = Math.max(answer.turns.length, other.turns.length);
    const texts = Array.from({ length: count }, (_, index) => [index, turnText(other.turns[index]), turnText(answer.turns[index])]);
    return texts.filter(([, before, after]) => before !== after);
  }, [answer, other]);
  const first = differing[0]?.[0] ?? -1;
  const entry = (place) => {
    const [index, before, after] = differing[place];
    return html`<section key=${index} role="group" aria-label=${`Turn ${index}`}>
      <h2>turn ${index}</h2>
      <${DiffView} before=${before} after=${after} label=${`Differences of turn ${index}`} />
    </section>`;
  };
  return html`<div class="pad" ref=${pane} tabindex="0" role="group" aria-label="Differences">
    <table>
      <thead>
        <tr>
          <td></td>
          <th scope="col">pinned: ${shortName(other.summary.id)}</th>
          <th scope="col">this: ${showUnseen(answer.summary.id)}</th>
        </tr>
      </thead>
      <tbody>
        ${FACTS.map(
          ([name, read]) =>
            html`<tr>
              <th scope="row">${name}</th>
              <td>${read(other)}</td>
              <td>${read(answer)}</td>
            </tr>`,
        )}
      </tbody>
    </table>
    <p>${first < 0 ? "Their turns are equal." : `They first differ in turn ${first}.`}</p>
    <${FirstToken} run=${run} before=${other.summary.id} after=${answer.summary.id} />
    <${VirtualList} key=${`${other.summary.id} ${answer.summary.id}`} box=${pane} count=${differing.length} estimate=${() => 200} entry=${entry} />
  </div>`;
}

/** The first token at which the two part, with a way to it in each. */
function FirstToken({ run, before, after }) {
  const loaded = useResource(() => ask(run, "diff", { a: before, b: after }), [run, before, after]);
  if (loaded.error) return html`<p class="muted">Tokens are not compared: ${loaded.error.message}</p>`;
  if (!loaded.value) return html`<p class="muted">Comparing the tokens …</p>`;
  const found = loaded.value.first_divergence;
  if (!found) return html`<p>Their tokens are equal.</p>`;
  const side = (id, token, name) => {
    if (token === null) return `${name} has ended`;
    const range = `${found.token}-${found.token + 1}`;
    return html`<a href=${link("trajectory", { run, id, tab: "tokens", tokens: range })}>${name}</a>`;
  };
  return html`<p>
    ${`Their tokens first differ at token ${found.token}: `}
    ${side(before, found.id_a, "the pinned one")}${", "}${side(after, found.id_b, "this one")}.
  </p>`;
}

const FACTS = [
  ["status", ({ summary }) => showUnseen([summary.status, summary.status_reason].filter(Boolean).join(": "))],
  ["reward", ({ summary }) => number(summary.reward)],
  ["turns", ({ turns }) => turns.length],
  ["step", ({ summary }) => summary.step],
  ["policy version", ({ summary }) => summary.policy_version_max ?? "–"],
];

/** What a turn observed, said, called and was answered, as lines. */
export function turnText(turn) {
  if (!turn) return "";
  const lines = [];
  for (const { role, content } of turn.observed ?? []) {
    if (role !== "tool") lines.push(`[${role}]`, textOf(content));
  }
  lines.push(`[assistant${turn.agent && turn.agent !== "main" ? ` ${turn.agent}` : ""}]`, turn.text ?? "");
  for (const { call, problem, result } of turn.calls ?? []) {
    lines.push(`[call ${call?.name ?? problem?.kind ?? ""}]`, ...argumentLines(call, problem));
    if (result) lines.push(`[result${result.error ? ` ${result.error}` : ""}]`, result.content ?? "");
  }
  return lines.join("\n");
}

/** A line an argument, and more where it holds text of several. */
function argumentLines(call, problem) {
  if (!call) return [problem?.raw ?? ""];
  const given = call.arguments;
  if (given === null || typeof given !== "object") return [textOf(given)];
  return Object.entries(given).map(([name, value]) => `${name}: ${textOf(value)}`);
}

function textOf(content) {
  return typeof content === "string" ? content : jsonText(content ?? "", 2);
}
