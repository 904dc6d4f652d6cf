/** Shortcuts: the keyboard's ways through a trajectory and to others. */
import { useKeys } from "../lib/keys.js";
import { go, link, update } from "../lib/router.js";
import { isNarrow } from "../ui/drawer.js";
import { nextTurn, problemsOf } from "./data.js";
import { isRaw } from "./parts/shown_text.js";

/** Shows texts as they are, or as what they mean. */
export const turnRaw = () => update({ raw: isRaw() ? "" : "1" });

/**
 * @param {object} props
 * @param {string} props.run
 * @param {object} props.answer the trajectory
 * @param {Record<string, string>} props.params of the address
 * @param {number | null} props.turn the current one
 * @param {string[]} props.tabs their names, in order
 * @param {(index: number) => void} props.onTurn
 * @param {() => void} props.onOutline opens the outline, where it is a drawer
 */
export function useShortcuts({ run, answer, params, turn, tabs, onTurn, onOutline }) {
  const { turns, neighbours = {}, summary } = answer;
  const id = summary.id;
  const visit = (other) => {
    if (!other) return;
    const { tab, colour, pin, raw } = params;
    go(link("trajectory", { run, id: other, tab, colour, pin, raw }));
  };
  const step = (by) => {
    const from = turn ?? (by > 0 ? -1 : turns.length);
    const to = Math.min(turns.length - 1, Math.max(0, from + by));
    if (turns.length) onTurn(to);
  };
  const seek = (by, wanted) => {
    const found = nextTurn(turns, turn ?? (by > 0 ? -1 : turns.length), by, wanted);
    if (found !== null) onTurn(found);
  };
  const failed = (one) => problemsOf(one).length > 0;
  const called = (one) => (one.calls ?? []).length > 0;
  useKeys("Trajectory", [
    { key: "j", help: "next turn", run: () => step(1) },
    { key: "k", help: "turn before", run: () => step(-1) },
    { key: "J", help: "next trajectory", run: () => visit(neighbours.next) },
    { key: "K", help: "trajectory before", run: () => visit(neighbours.previous) },
    { key: "]", help: "next of its group", run: () => visit(sibling(neighbours, id, 1)) },
    { key: "[", help: "the one before in its group", run: () => visit(sibling(neighbours, id, -1)) },
    { key: "}", help: "next of the same task", run: () => visit(neighbours.same_task_next) },
    { key: "{", help: "the one before of the same task", run: () => visit(neighbours.same_task_previous) },
    { key: "e", help: "next turn with an error", run: () => seek(1, failed) },
    { key: "E", help: "the error before", run: () => seek(-1, failed) },
    { key: "t", help: "next turn with a tool call", run: () => seek(1, called) },
    {
      key: "p",
      help: "pin, to compare with another; again: let it go",
      run: () => update({ pin: params.pin ? "" : id }),
    },
    {
      key: "d",
      help: "differences from the pinned one",
      run: () => update({ tab: params.tab === "diff" ? "chat" : "diff" }),
    },
    ...(isNarrow.value ? [{ key: "o", help: "turns and notes", run: onOutline }] : []),
    { key: "r", help: "texts as they are, or with colours, Markdown and mathematics", run: turnRaw },
    ...tabs.map((tab, index) => ({
      key: String(index + 1),
      help: index === 0 ? `tabs: 1 to ${tabs.length}` : "",
      run: () => update({ tab }, { replace: false }),
    })),
  ]);
}

/** The id of the sibling before or after, around the end; null where there is no other. */
function sibling(neighbours, id, by) {
  const ids = (neighbours.siblings ?? []).map((one) => (typeof one === "string" ? one : one.id));
  const at = ids.indexOf(id);
  if (ids.length < 2 || at < 0) return null;
  return ids[(at + by + ids.length) % ids.length];
}
