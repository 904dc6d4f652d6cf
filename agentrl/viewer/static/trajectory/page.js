/** Trajectory page: one episode in eight tabs, alone or beside a pinned one. */
import { html } from "../lib/html.js";
import { useEffect, useErrorBoundary, useState } from "../vendor/hooks.js";
import { link, offers, update } from "../lib/router.js";
import { Drawer, DrawerButton, isNarrow } from "../ui/drawer.js";
import { useLatest } from "../lib/live.js";
import { ask, forget } from "./data.js";
import { Header } from "./header.js";
import { Notes } from "./notes.js";
import { Outline } from "./outline.js";
import { Empty, Failure } from "./parts/notice.js";
import { isRaw } from "./parts/shown_text.js";
import { useResource } from "../lib/resource.js";
import { turnRaw, useShortcuts } from "./shortcuts.js";
import { ChatTab } from "./tabs/chat.js";
import { DiffTab } from "./tabs/diff.js";
import { JudgingTab } from "./tabs/judging.js";
import { RawTab } from "./tabs/raw.js";
import { RenderedTab } from "./tabs/rendered.js";
import { RetokeniseTab } from "./tabs/retokenise.js";
import { StateTab } from "./tabs/state.js";
import { TimelineTab } from "./tabs/timeline.js";
import { TokensTab } from "./tokens/tab.js";

/** Tabs by the name in the address: title and component. */
export const TABS = new Map(
  [
    ["chat", ["Chat", ChatTab]],
    ["tokens", ["Tokens", TokensTab]],
    ["rendered", ["Rendered", RenderedTab]],
    ["retokenise", ["Re-tokenise", RetokeniseTab]],
    ["judging", ["Judging", JudgingTab]],
    ["state", ["State", StateTab]],
    ["timeline", ["Timeline", TimelineTab]],
    ["raw", ["Raw", RawTab]],
    ["diff", ["Differences", DiffTab]],
  ].filter(([name]) => offers(name)),
);

/**
 * @param {{run: string, id: string, params: Record<string, string>}} props `params`: `tab`, `turn`,
 *   `tokens`, `colour`, `sequence`, and `pin`, the id of the trajectory beside it
 */
export function TrajectoryPage({ run, id, params }) {
  const tab = TABS.has(params.tab) ? params.tab : "chat";
  const loaded = useResource(() => ask(run, "trajectory", { id }), [run, id]);
  const pin = params.pin && params.pin !== id ? params.pin : null;
  const pinned = useResource(
    () => (pin ? ask(run, "trajectory", { id: pin }) : Promise.resolve(null)),
    [run, pin],
  );
  useLatest(run, ["step"], () => {
    forget(run); // what the step learned is new
    if (loaded.value && awaited(loaded.value)) loaded.reload();
  });
  useEffect(() => {
    // both answers are asked for at once; the tab shows what became of this one
    if (tab === "tokens") ask(run, "tokens", { id }).catch(() => {});
  }, [run, id, tab]);
  if (loaded.error) {
    return html`<div class="page"><${Failure} error=${loaded.error} onRetry=${loaded.reload} /></div>`;
  }
  if (!loaded.value) return html`<${Empty}>Reading the trajectory …<//>`;
  const reload = () => {
    forget(run, id);
    loaded.reload();
  };
  return html`<${Episode}
    run=${run}
    answer=${loaded.value}
    isStale=${loaded.loading && loaded.value.summary.id !== id}
    params=${params}
    tab=${tab}
    pinned=${pin ? pinned : null}
    onReload=${reload}
  />`;
}

/** Whether a step may still train the trajectory, or learn of it. */
function awaited({ summary, annotations }) {
  const isDecided = summary.drop || summary.trained_step !== null;
  return summary.purpose === "train" && !(isDecided && annotations?.length);
}

function Episode({ run, answer, isStale, params, tab, pinned, onReload }) {
  const id = answer.summary.id;
  const [target, setTarget] = useState(null); // what a new note is about
  const [isOpen, setOpen] = useState(false); // the drawer of the outline, where it is one
  useEffect(() => setTarget(null), [id]);
  const turn = /^\d+$/.test(params.turn ?? "") ? Number(params.turn) : null;
  const onTurn = (index) => update({ turn: index, tokens: "" });
  const onNote = (about) => {
    setTarget(about);
    setOpen(true);
  };
  useShortcuts({ run, answer, params, turn, tabs: [...TABS.keys()], onTurn, onOutline: () => setOpen(!isOpen) });
  const shared = { run, params, turn, onTurn, onParams: update, onNote };
  const choose = (index) => {
    onTurn(index);
    setOpen(false);
  };
  const other = pinned?.value ?? null;
  const split = pinned !== null && tab !== "diff";
  return html`<div class=${isStale ? "traj stale" : "traj"} aria-busy=${isStale}>
    <${Header} run=${run} answer=${answer} params=${params} />
    <div class="traj-body">
      <${Drawer} label="Turns and notes" look="traj-side" isOpen=${isOpen || !isNarrow.value} onClose=${() => setOpen(false)}>
        <${Outline} turns=${answer.turns} current=${turn} notes=${answer.notes ?? []} onTurn=${choose} />
        <${Notes}
          run=${run}
          id=${id}
          notes=${answer.notes ?? []}
          recordedAt=${answer.summary.recorded_at}
          target=${target}
          onTarget=${setTarget}
          onChange=${onReload}
        />
      <//>
      <div class="traj-main">
        <div class="traj-bar">
          ${isNarrow.value && html`<${DrawerButton} isOpen=${isOpen} onClick=${() => setOpen(true)}>Turns <kbd>o</kbd><//>`}
          <${TabBar} run=${run} id=${id} params=${params} tab=${tab} />
          <button type="button" class="quiet" aria-pressed=${isRaw()} title="key r" onClick=${turnRaw}>raw text</button>
        </div>
        <div class=${split ? "panes two" : "panes"}>
          ${
            split &&
            html`<div class="pane" role="group" aria-label="Pinned trajectory">
              ${pinned.error && html`<${Failure} error=${pinned.error} />`}
              ${other && html`<${TabPane} key=${`${tab}/${other.summary.id}`} tab=${tab} ...${shared} answer=${other} onNote=${null} />`}
            </div>`
          }
          <div class="pane">
            <${TabPane} key=${`${tab}/${id}`} tab=${tab} ...${shared} answer=${answer} other=${other} />
          </div>
        </div>
      </div>
    </div>
  </div>`;
}

/** One tab of one trajectory; a fault in it leaves the rest of the page standing. */
function TabPane({ tab, ...props }) {
  const [error, reset] = useErrorBoundary((caught) => console.error(caught));
  if (error) return html`<${Failure} error=${error} onRetry=${reset} />`;
  const [, Tab] = TABS.get(tab);
  return html`<${Tab} ...${props} />`;
}

const inSight = (element) => element?.scrollIntoView({ block: "nearest", inline: "nearest" });

function TabBar({ run, id, params, tab }) {
  return html`<nav class="tabs" aria-label="Views of the trajectory">
    ${[...TABS].map(([name, [title]], index) => {
      const href = link("trajectory", { ...params, run, id, tab: name });
      return html`<a href=${href} aria-current=${name === tab ? "page" : null} ref=${name === tab ? inSight : null} title=${`key ${index + 1}`}
        >${title}</a
      >`;
    })}
  </nav>`;
}
