/** Header: what the trajectory is and came to, and the ways to its neighbours. */
import { html } from "../lib/html.js";
import { groupLink, link, offers, taskLink } from "../lib/router.js";
import { count, duration, number } from "../lib/format.js";
import { showUnseen } from "../lib/unseen.js";
import { shortName } from "./tokens/display.js";

/** @param {{run: string, answer: object, params: object}} props */
export function Header({ run, answer, params }) {
  const { summary, neighbours = {} } = answer;
  const to = (id) =>
    id && link("trajectory", { run, id, tab: params.tab, colour: params.colour, pin: params.pin, raw: params.raw });
  return html`<header class="traj-head">
    <div class="traj-title">
      <h1>${showUnseen(summary.id)}</h1>
      <${Status} summary=${summary} />
      <${Reward} summary=${summary} />
      <span class="spacer"></span>
      <nav aria-label="Other trajectories">
        <${Step} href=${to(neighbours.previous)} keys="K" text="previous" />
        <${Step} href=${to(neighbours.next)} keys="J" text="next" />
        <${Step}
          href=${groupLink(run, { ...summary, group: summary.group_index })}
          text=${summary.group_size ? `group of ${summary.group_size}` : "group"}
        />
        <${Step} href=${taskLink(run, summary.task_id)} text="task" />
        ${offers("step") && html`<${Step} href=${link("step", { run, id: summary.step, stage: summary.stage })} text="step" />`}
      </nav>
    </div>
    <dl class="traj-facts">
      ${facts(summary, answer.info?.seats ?? {}).map(
        ([name, value]) =>
          html`<div>
            <dt>${name}</dt>
            <dd>${value}</dd>
          </div>`,
      )}
    </dl>
    ${
      params.pin &&
      html`<p class="small muted">
        ${"pinned: "}<a href=${link("trajectory", { run, id: params.pin, tab: params.tab })}
          >${shortName(params.pin)}</a
        >
        ${" (d shows the differences, p lets it go)"}
      </p>`
    }
  </header>`;
}

function Step({ href, keys = "", text }) {
  if (!href) return html`<span class="step-off">${text}</span>`;
  return html`<a class="step" href=${href} title=${keys && `key ${keys}`}>${text}</a>`;
}

const STATUS_CLASS = { terminated: "good", truncated: "warn", failed: "bad", cancelled: "" };

function Status({ summary }) {
  const why = [summary.status_reason, summary.status_detail].filter(Boolean).join(": ");
  return html`<span class="chip ${STATUS_CLASS[summary.status] ?? ""}" title=${shortName(why, 500)}>
    ${shortName(summary.status ?? "")}${summary.status_reason ? ` (${shortName(summary.status_reason)})` : ""}
  </span>`;
}

function Reward({ summary }) {
  if (typeof summary.reward !== "number") return html`<span class="chip muted">no reward</span>`;
  return html`<span class="chip ${summary.reward > 0 ? "good" : "bad"}"
    >reward ${number(summary.reward)}</span
  >`;
}

/** An agent of several, with what it got. */
function agentText(agent, seat) {
  if (typeof seat?.reward !== "number") return shortName(agent);
  return `${shortName(agent)} ${number(seat.reward)}${seat.train ? "" : " (not trained)"}`;
}

function facts(summary, seats) {
  const versions = [summary.policy_version_min, summary.policy_version_max];
  const span = summary.ended_at && summary.started_at ? summary.ended_at - summary.started_at : null;
  return [
    ["task", shortName(summary.task_id ?? "")],
    ["step", summary.step],
    ["stage", shortName(summary.stage ?? "")],
    ["purpose", shortName(summary.label || summary.purpose || "")],
    ["environment", shortName(summary.env ?? "")],
    ["agents", (summary.agents ?? []).map((agent) => agentText(agent, seats[agent])).join(", ")],
    ["turns", summary.num_turns],
    ["calls", summary.num_calls],
    ["tool errors", summary.num_tool_errors],
    ["sampled tokens", count(summary.num_policy_tokens)],
    ["tokens", count(summary.num_tokens)],
    ["policy version", versionText(versions)],
    ["trained in step", summary.trained_step],
    ["dropped", shortName(summary.drop ?? "")],
    ["took", span === null ? "" : duration(span)],
  ].filter(([, value]) => value !== undefined && value !== null && value !== "");
}

function versionText([low, high]) {
  if (low === null || low === undefined) return "";
  return low === high ? String(low) : `${low} to ${high}`;
}
