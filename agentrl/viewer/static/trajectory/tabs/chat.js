/** Chat: the conversation as the environment and the model wrote it. */
import { html } from "../../lib/html.js";
import { useMemo, useRef } from "../../vendor/hooks.js";
import { duration, number } from "../../lib/format.js";
import { showUnseen } from "../../lib/unseen.js";
import { shortName } from "../tokens/display.js";
import { VirtualList } from "../../ui/virtual_list.js";
import { lanesOf, laneTitle, rowsOf } from "../data.js";
import { Content } from "../parts/content.js";
import { CodeBlock, CopyButton } from "../parts/code_block.js";
import { languageOf } from "../parts/highlight.js";
import { JsonTree } from "../parts/json_tree.js";
import { LongText } from "../parts/long_text.js";
import { StoredImage } from "../parts/stored_image.js";

/** @param {{run: string, answer: object, turn: number | null}} props */
export function ChatTab({ run, answer, turn, onNote }) {
  const pane = useRef(null);
  const { turns } = answer;
  const lanes = useMemo(() => lanesOf(turns), [turns]);
  const rows = useMemo(() => inRows(turns, lanes), [turns]);
  const goal = useMemo(() => rows.findIndex((row) => row.some(([one]) => one.index === turn)), [rows, turn]);
  const cell = ([one, lane]) => html`<div key=${one.index} ref=${placed(lane + 1)}>
    <${ChatTurn} run=${run} turn=${one} current=${one.index === turn} onNote=${onNote} />
  </div>`;
  const entry = (place) =>
    html`<div key=${place} class="lanes" ref=${setLanes(lanes.length)}>${rows[place].map(cell)}</div>`;
  return html`<div class="chat" ref=${pane} tabindex="0" role="group" aria-label="Conversation">
    ${
      lanes.length > 1 &&
      html`<div class="lanes heads" ref=${setLanes(lanes.length)}>
        ${lanes.map((lane) => html`<div class="lane-head">${laneTitle(lane)}</div>`)}
      </div>`
    }
    <${VirtualList} key=${answer.summary.id} box=${pane} count=${rows.length} estimate=${() => 240} entry=${entry} goal=${goal} />
    ${
      (answer.last_observed ?? []).length > 0 &&
      html`<section class="chat-turn" role="group" aria-label="After the last turn">
        <h2>after the last turn</h2>
        ${answer.last_observed.map((message) => html`<${ChatMessage} run=${run} message=${message} />`)}
      </section>`
    }
  </div>`;
}

/** The turns that lie side by side, each with its lane; row below row. */
function inRows(turns, lanes) {
  const laneOf = new Map(lanes.flatMap((lane, at) => lane.turns.map((turn) => [turn, at])));
  const places = rowsOf(turns);
  const rows = [];
  turns.forEach((turn, place) => (rows[places[place]] ??= []).push([turn, laneOf.get(turn)]));
  return rows;
}

/** The number of columns is set on the element: the page's policy allows no style attribute. */
const setLanes = (count) => (element) => {
  if (element && count > 1) element.style.gridTemplateColumns = `repeat(${count}, minmax(22rem, 1fr))`;
};

const placed = (column) => (element) => {
  if (element) element.style.gridColumn = String(column);
};

function ChatTurn({ run, turn, current, onNote }) {
  const answered = new Set((turn.calls ?? []).map(({ result }) => result?.call_id).filter(Boolean));
  return html`<section
    class=${current ? "chat-turn current" : "chat-turn"}
    data-turn=${turn.index}
    role="group"
    aria-label=${`Turn ${turn.index}`}
  >
    <h2>
      turn ${turn.index} <span class="muted">${shortName(turn.agent)} ${turnFacts(turn)}</span>
      ${onNote && html`<button type="button" class="quiet" onClick=${() => onNote({ turn: turn.index })}>note</button>`}
    </h2>
    ${(turn.observed ?? [])
      .filter((message) => message.role !== "tool" || turn.index === 0)
      .map((message) => html`<${ChatMessage} run=${run} message=${message} />`)}
    <${Assistant} run=${run} turn=${turn} answered=${answered} />
  </section>`;
}

function turnFacts(turn) {
  const rewards = Object.entries(turn.rewards ?? {}).map(([part, value]) => `${part} ${number(value)}`);
  const made = turn.versions?.length ? [`version ${turn.versions.join(", ")}`] : [];
  return showUnseen([...made, turn.finish_reason, ...rewards].filter(Boolean).join(" · "));
}

function ChatMessage({ run, message }) {
  return html`<article class="message role-${roleClass(message.role)}">
    <div class="role">
      ${shortName(message.role)}${message.name ? ` ${shortName(message.name)}` : ""}<${CopyText} text=${message.content} />
    </div>
    <${Content} content=${message.content} run=${run} />
  </article>`;
}

const ROLES = ["system", "user", "assistant", "tool"];

const roleClass = (role) => (ROLES.includes(role) ? role : "other");

function Assistant({ run, turn }) {
  const message = turn.message ?? {};
  const calls = turn.calls ?? [];
  const said = message.content || (calls.length ? "" : turn.text);
  return html`<article class="message role-assistant">
    <div class="role">assistant<${CopyText} text=${said} /></div>
    ${
      message.reasoning_content &&
      html`<details class="reasoning" open>
        <summary>reasoning</summary>
        <${Content} content=${message.reasoning_content} run=${run} />
      </details>`
    }
    <${Content} content=${said} run=${run} />
    ${calls.map((record) => html`<${Call} record=${record} run=${run} />`)}
    ${
      !calls.length &&
      (message.tool_calls ?? []).map(
        (call) => html`<${Call} record=${{ call: call.function, problem: null, result: null }} run=${run} />`,
      )
    }
  </article>`;
}

function Call({ record, run }) {
  const { call, problem, result } = record;
  const name = call?.name || result?.name || "unreadable call";
  const failed = Boolean(problem || result?.error);
  return html`<div class=${failed ? "call call-bad" : "call"}>
    <div class="call-head">
      <span class="tool">${shortName(name, 200)}</span>
      ${problem && html`<span class="bad">${problem.kind}${problem.count > 1 ? ` × ${problem.count}` : ""}</span>`}
      ${result?.error && html`<span class="bad">${result.error}</span>`}
      ${result?.truncated && html`<span class="warn">output cut to the tool's limit</span>`}
      ${result && html`<span class="muted">${duration(result.latency_s)}</span>`}
    </div>
    ${call && html`<${Arguments} value=${call.arguments} tool=${name} run=${run} />`}
    ${problem && html`<${CodeBlock} text=${problem.raw || problem.detail} label="as the model wrote it" />`}
    ${
      result &&
      html`<${CodeBlock} text=${result.content ?? ""} label=${failed ? "error" : "result"} />
        ${(result.images ?? []).map((image) => html`<${StoredImage} image=${image.$image ?? image} run=${run} />`)}`
    }
    ${call && !result && html`<p class="muted">
      no result is recorded: the episode ended first, or an agent program ran the call itself
    </p>`}
  </div>`;
}

/** Copies what a message says, as it is. */
const CopyText = ({ text }) => typeof text === "string" && text !== "" && html`<${CopyButton} text=${text} />`;

/** The language of an argument, by its own name or by the tool's where it is its code. */
const codeOf = (tool, name) => languageOf(name) || (/^(code|source|script|program)$/.test(name) ? languageOf(tool) : "");

/** Arguments as a tree; a long text among them and code as a block of its own. */
function Arguments({ value, tool, run }) {
  if (value === null || typeof value !== "object") return html`<${LongText} text=${String(value)} mono />`;
  const entries = Object.entries(value);
  const texts = entries.filter(([name, item]) => typeof item === "string" && (item.includes("\n") || codeOf(tool, name)));
  if (!texts.length) return html`<${JsonTree} value=${value} open=${2} run=${run} />`;
  const rest = entries.filter((entry) => !texts.includes(entry));
  return html`${texts.map(([name, text]) => html`<${CodeBlock} text=${text} label=${shortName(name)} lang=${codeOf(tool, name)} />`)}
  ${rest.length > 0 && html`<${JsonTree} value=${Object.fromEntries(rest)} open=${2} run=${run} />`}`;
}
