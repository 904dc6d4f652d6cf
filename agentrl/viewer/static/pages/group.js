/** Group: the rollouts of one task side by side: rewards, advantages, and where their tokens part. */
import { useMemo } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { ofRun, useApi } from "../lib/api.js";
import { decode } from "../lib/arrays.js";
import { count, number } from "../lib/format.js";
import { go, link, taskLink, update } from "../lib/router.js";
import { AlignmentView, useAlignment } from "../ui/alignment.js";
import { useCursor } from "../ui/cursor.js";
import { Name } from "../ui/name.js";
import { Empty, Loaded } from "../ui/state.js";
import { rewardClass, statusClass } from "../ui/status.js";

const MOST = 16;

/** The page of a group; `id` is its group index. */
export function GroupPage({ run, id, params }) {
  const { stage, label } = params;
  const group = useApi(ofRun(run, "group"), { group_index: id, stage, label });
  return html`
    <div class="page fill group-page">
      <${Loaded} of=${group}>
        ${(data) =>
          data.rows.length === 0
            ? html`<${Empty}>No trajectory of group ${id} has ended yet.<//>`
            : html`<${Group} run=${run} id=${id} group=${data} params=${params} />`}
      <//>
    </div>
  `;
}

function Group({ run, id, group, params }) {
  const rows = group.rows.slice(0, MOST);
  const sequences = useMemo(() => rows.filter((row) => group.tokens[row.id]).map((row) => sequenceOf(row, group.tokens[row.id])), [group]);
  const wanted = sequences.findIndex((one) => one.id === params.reference);
  const reference = Math.max(0, wanted);
  const state = useAlignment(sequences, reference);
  const hrefOf = ({ id: trajectory }, place) =>
    link("trajectory", { run, id: trajectory, tab: "tokens", tokens: `${place}-${place}` });
  return html`
    <div class="head">
      <h1>Group ${id}</h1>
      ${[params.stage, params.label].filter(Boolean).map((text) => html`<span class="chip" key=${text}><${Name} text=${text} limit=${40} /></span>`)}
      <span class="muted">
        task <a href=${taskLink(run, rows[0].task)}><${Name} text=${rows[0].task} limit=${60} /></a>,
        ${" "}${group.rows.length} rollouts${group.rows.length > MOST ? `, the first ${MOST} shown` : ""}
      </span>
      <${Signal} group=${group} />
    </div>
    <div class="panel scroll-x group-rows">
      <${Siblings} run=${run} rows=${rows} group=${group} sequences=${sequences} reference=${reference} alignment=${state.alignment} />
    </div>
    ${sequences.length > 1
      ? html`<${AlignmentView} sequences=${sequences} reference=${reference} state=${state} hrefOf=${hrefOf} />`
      : html`<${Empty}>One rollout has tokens here; there is nothing to compare it with.<//>`}
  `;
}

/** Whether the group taught anything. */
function Signal({ group }) {
  if (group.drop) return html`<span class="chip warn">not trained: <${Name} text=${group.drop} limit=${60} /></span>`;
  if (group.zero_std) return html`<span class="chip warn">equal rewards: no signal</span>`;
  if (group.reward_mean === null || group.reward_mean === undefined) return null;
  return html`<span class="muted">reward ${number(group.reward_mean)} ± ${number(group.reward_std)}</span>`;
}

function Siblings({ run, rows, group, sequences, reference, alignment }) {
  const base = sequences[reference]?.id;
  const refer = (index) => index >= 0 && update({ reference: rows[index].id });
  const [active, setActive] = useCursor({
    scope: "Rollouts",
    noun: "rollout",
    count: rows.length,
    onOpen: (index) => go(link("trajectory", { run, id: rows[index].id })),
    more: [{ key: "r", help: "compare the others with the rollout", run: refer }],
  });
  return html`
    <table class="rows">
      <thead>
        <tr>
          <th>Rollout</th><th>Status</th><th class="num">Reward</th><th>Reward parts</th><th class="num">Advantage</th>
          <th class="num">Turns</th><th class="num">Tokens</th><th class="num">Tool errors</th><th>Diverges at</th><th><span class="sr-only">Reference</span></th>
        </tr>
      </thead>
      <tbody>
        ${rows.map((row, index) => {
          const place = sequences.findIndex((one) => one.id === row.id);
          return html`<tr key=${row.id} class=${index === active ? "active" : ""} data-active=${index === active} onClick=${() => setActive(index)}>
            <td><a href=${link("trajectory", { run, id: row.id })}><${Name} text=${row.id} limit=${60} /></a>${row.purpose === "baseline" && html` <span class="chip">greedy baseline</span>`}</td>
            <td><span class=${`chip ${statusClass(row.status)}`}>${row.status}</span></td>
            <td class="num"><span class=${rewardClass(row.reward)}>${number(row.reward)}</span></td>
            <td><${RewardParts} row=${row} /></td>
            <td class="num"><${Advantages} of=${group.advantages[row.id] ?? {}} /></td>
            <td class="num">${number(row.turns)}</td>
            <td class="num">${count(row.tokens)}</td>
            <td class="num">${number(row.tool_errors)}</td>
            <td>${divergence(alignment, sequences, place, reference)}</td>
            <td>
              <button class="button" aria-pressed=${row.id === base} disabled=${place < 0} onClick=${() => refer(index)}>
                Reference
              </button>
            </td>
          </tr>`;
        })}
      </tbody>
    </table>
    ${!rows.some(({ id }) => Object.keys(group.advantages[id] ?? {}).length > 0) &&
    html`<p class="muted small">
      No advantage is recorded: ${group.drop ? "the group was not trained" : "a step that trains the group records it, with store.detail: tokens"}.
    </p>`}
  `;
}

/** The mean advantage of each agent of an episode, named where there are several. */
function Advantages({ of }) {
  const own = Object.entries(of);
  if (own.length === 0) return "–";
  return html`<span class="pairs">${own.map(
    ([agent, value]) => html`<span key=${agent}>${own.length > 1 && html`<span class="muted"><${Name} text=${agent} limit=${30} /></span> `}<span class=${rewardClass(value)}>${number(value)}</span></span>`,
  )}</span>`;
}

function RewardParts({ row }) {
  const parts = Object.entries(row).filter(([name]) => name.startsWith("reward."));
  return html`<span class="pairs small">${parts.slice(0, 6).map(
    ([name, value]) => html`<span key=${name}><span class="muted"><${Name} text=${name.slice("reward.".length)} limit=${30} /></span> ${number(value)}</span>`,
  )}</span>`;
}

/** Where a rollout parts from the reference: its turn and token. */
function divergence(alignment, sequences, index, reference) {
  if (!alignment || index < 0 || index === reference) return "";
  const column = alignment.diverges[index];
  if (column < 0) return "nowhere";
  const row = alignment.rows[index];
  let place = row[column];
  for (let i = column; place < 0 && i >= 0; i -= 1) place = row[i];
  if (place < 0) return "at once";
  return `turn ${sequences[index].turn[place]}, token ${number(place)}`;
}

/** A sequence of the alignment. */
export function sequenceOf(row, tokens) {
  return {
    id: row.id,
    label: `${row.rollout ?? ""} ${row.reward === null || row.reward === undefined ? "" : `reward ${number(row.reward)}`}`.trim(),
    ids: decode(tokens.ids),
    kinds: decode(tokens.kinds),
    turn: decode(tokens.turn),
    pieces: tokens.pieces,
  };
}
