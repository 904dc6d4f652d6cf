/** Judging: each part of the reward, and why it has its value. */
import { html } from "../../lib/html.js";
import { number } from "../../lib/format.js";
import { CodeBlock } from "../parts/code_block.js";
import { Content } from "../parts/content.js";
import { JsonTree } from "../parts/json_tree.js";
import { LongText } from "../parts/long_text.js";
import { Empty, Missing } from "../parts/notice.js";
import { shortName } from "../tokens/display.js";

/** @param {{run: string, answer: object}} props */
export function JudgingTab({ run, answer }) {
  const { summary, task } = answer;
  const rewards = Object.entries(answer.rewards ?? {});
  const reasons = new Map(Object.entries(answer.reasons ?? {}));
  const names = new Set([...rewards.map(([part]) => part), ...reasons.keys()]);
  const values = new Map(rewards);
  return html`<div class="judging pad" tabindex="0" role="group" aria-label="Judging">
    <p>
      total <b>${typeof summary.reward === "number" ? number(summary.reward) : "none"}</b>
      ${summary.reward === null && html`<span class="muted"> ${noReward(summary)}</span>`}
    </p>
    ${!names.size && html`<${Empty}>The rubric gave no parts.<//>`}
    ${[...names].map(
      (part) =>
        html`<${PartOf}
          key=${part}
          part=${part}
          value=${values.get(part)}
          why=${reasons.get(part)}
          run=${run}
        />`,
    )}
    ${
      task?.answer !== null &&
      task?.answer !== undefined &&
      html`<section role="group" aria-label="Ground truth">
        <h2>ground truth</h2>
        <${Why} why=${task.answer} run=${run} />
      </section>`
    }
    <${Missing} missing=${answer.missing} only=${["reasons", "rewards"]} />
  </div>`;
}

function noReward(summary) {
  if (summary.status === "failed") return "The episode failed, and a failure is no reward of 0.";
  return summary.status === "cancelled" ? "The episode was cancelled." : "";
}

function PartOf({ part, value, why, run }) {
  return html`<section class="reward-part" role="group" aria-label=${shortName(part)}>
    <h2>${shortName(part)} <span class=${value > 0 ? "good" : "bad"}>${number(value)}</span></h2>
    ${
      why === undefined
        ? html`<p class="muted">No reason is recorded: the part returned a number, not Score(value, why).</p>`
        : html`<${Why} why=${why} run=${run} />`
    }
  </section>`;
}

/** A reason: text as text, a conversation as messages, a mapping key by key. */
function Why({ why, run }) {
  if (typeof why === "string") return html`<${LongText} text=${why} mono />`;
  if (isConversation(why)) {
    return html`${why.map(
      (message) =>
        html`<article class="message role-${message.role}">
          <div class="role">${message.role}</div>
          <${Content} content=${message.content} run=${run} />
        </article>`,
    )}`;
  }
  if (why === null || typeof why !== "object" || Array.isArray(why)) {
    return html`<${JsonTree} value=${why} open=${2} run=${run} />`;
  }
  const entries = Object.entries(why);
  const long = entries.filter(([, item]) => isConversation(item) || isText(item));
  const rest = entries.filter((entry) => !long.includes(entry));
  return html`
    ${rest.length > 0 && html`<${JsonTree} value=${Object.fromEntries(rest)} open=${2} run=${run} />`}
    ${long.map(([name, item]) =>
      isText(item)
        ? html`<${CodeBlock} text=${item} label=${shortName(name)} />`
        : html`<h3>${shortName(name)}</h3>
            <${Why} why=${item} run=${run} />`,
    )}
  `;
}

const isText = (item) => typeof item === "string" && (item.length > 100 || item.includes("\n"));

function isConversation(value) {
  const roles = new Set(["system", "user", "assistant", "tool"]);
  return Array.isArray(value) && value.length > 0 && value.every((one) => roles.has(one?.role));
}
