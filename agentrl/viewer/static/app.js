/** Application: the frame of every page: navigation, keys, theme, and the page that the URL names. */
import { render } from "./vendor/preact.js";
import { useEffect, useErrorBoundary, useRef } from "./vendor/hooks.js";
import { signal } from "./vendor/signals.js";
import { html } from "./lib/html.js";
import { connection, ofRun, useApi } from "./lib/api.js";
import { useLatest, useRunEvents } from "./lib/live.js";
import { bind, listen as listenToKeys, useKeys } from "./lib/keys.js";
import { go, link, listen as listenToRoute, offers, route } from "./lib/router.js";
import { useResource } from "./lib/resource.js";
import { listen as listenToTheme, theme, toggle } from "./lib/theme.js";
import { Help } from "./ui/help.js";
import { Name } from "./ui/name.js";
import { Empty, Failed } from "./ui/state.js";

/** Each page's module and what it exports; loaded when first shown. */
const MODULES = {
  runs: () => import("./pages/runs.js").then((module) => module.RunsPage),
  compare: () => import("./pages/compare.js").then((module) => module.ComparePage),
  overview: () => import("./pages/overview.js").then((module) => module.OverviewPage),
  metrics: () => import("./pages/metrics.js").then((module) => module.MetricsPage),
  timeline: () => import("./pages/timeline.js").then((module) => module.TimelinePage),
  settings: () => import("./pages/settings.js").then((module) => module.SettingsPage),
  trajectories: () => import("./pages/trajectories.js").then((module) => module.TrajectoriesPage),
  trajectory: () => import("./trajectory/page.js").then((module) => module.TrajectoryPage),
  step: () => import("./pages/step.js").then((module) => module.StepPage),
  group: () => import("./pages/group.js").then((module) => module.GroupPage),
  tasks: () => import("./pages/tasks.js").then((module) => module.TasksPage),
  task: () => import("./pages/task.js").then((module) => module.TaskPage),
  diff: () => import("./pages/diff.js").then((module) => module.DiffPage),
  behaviour: () => import("./pages/behaviour.js").then((module) => module.BehaviourPage),
  blame: () => import("./pages/blame.js").then((module) => module.BlamePage),
};

/** Pages of a run in the navigation: name, title, the key after g. */
const TABS = [
  ["overview", "Overview", "o"],
  ["metrics", "Metrics", "m"],
  ["timeline", "Timeline", "i"],
  ["trajectories", "Trajectories", "t"],
  ["tasks", "Tasks", "k"],
  ["behaviour", "Behaviour", "b"],
  ["blame", "Blame", "l"],
  ["settings", "Settings", "e"],
].filter(([name]) => offers(name));

const helpShown = signal(false);

function App() {
  const { page, run } = route.value;
  const here = useApi(run ? ofRun(run) : "");
  const main = useRef(null);
  useRunEvents(run);
  useLatest(run, ["state", "open"], here.reload);
  useShellKeys(run);
  useTrajectoryPageLoaded(run);
  useEffect(() => {
    main.current.scrollTo(0, 0);
    main.current.focus({ preventScroll: true });
  }, [page, run, route.value.id]);
  const name = here.data?.name ?? "";
  useEffect(() => {
    document.title = [name, page, "agentrl"].filter(Boolean).join(" · ");
  }, [name, page]);
  return html`
    <div class="shell">
      <header class="bar">
        <a class="button skip" href="#main" onClick=${(event) => skip(event, main.current)}>Skip to content</a>
        <a class="brand" href=${link("runs")}><img src="icon.svg" alt="" />agentrl</a>
        ${run && html`<${RunTabs} run=${run} page=${page} record=${here.data} />`}
        <div class="end">
          <button class="button" onClick=${toggle}>${theme.value === "dark" ? "Light" : "Dark"}</button>
          <button class="button" onClick=${() => (helpShown.value = true)} aria-haspopup="dialog">
            Keys <kbd>?</kbd>
          </button>
        </div>
      </header>
      <${Banners} run=${here} />
      <main id="main" tabindex="-1" ref=${main}>
        <${Guarded} key=${`${page}/${run}`}><${Page} page=${page} run=${run} /><//>
      </main>
      ${helpShown.value && html`<${Help} onClose=${() => (helpShown.value = false)} />`}
    </div>
  `;
}

function RunTabs({ run, page, record }) {
  return html`
    <span class="run-name">
      <span class=${`dot ${record?.state ?? ""}`}></span>
      <span class="sr-only">${record?.state}</span>
      <${Name} text=${record?.name ?? run} limit=${60} />
    </span>
    <nav aria-label="Pages of the run">
      ${TABS.map(
        ([name, title]) => html`
          <a key=${name} href=${link(name, { run })} aria-current=${name === page ? "page" : undefined}>
            ${title}
          </a>
        `,
      )}
    </nav>
  `;
}

function Banners({ run }) {
  const gone = run.error && run.error.status > 0;
  const damage = run.data?.damage ?? [];
  return html`
    <div role="status">
      ${connection.value === "lost" &&
      html`<p class="banner bad">
        The server does not answer; the page asks again until it does. What is shown is as it was.
      </p>`}
      ${gone && html`<p class="banner bad">${run.error.message}</p>`}
      ${damage.length > 0 &&
      html`<details class="banner">
        <summary>${damage.length} ${damage.length === 1 ? "part" : "parts"} of this run cannot be read</summary>
        ${damage.slice(0, 20).map((text) => html`<p key=${text}><${Name} text=${text} limit=${400} /></p>`)}
      </details>`}
    </div>
  `;
}

/** A page that fails shows its error; the frame around it stays. */
function Guarded({ children }) {
  const [error] = useErrorBoundary((caught) => console.error(caught));
  return error ? html`<div class="page"><${Failed} error=${error} /></div>` : children;
}

function Page({ page, run }) {
  const { id, params } = route.value;
  const isKnown = Object.hasOwn(MODULES, page);
  const module = useResource(() => (isKnown ? MODULES[page]() : Promise.resolve(null)), [page]);
  if (!isKnown) {
    return html`<div class="page">
      <h1 class="sr-only">No page</h1>
      <${Empty}>No page has this address. <a href=${link("runs")}>All runs</a><//>
    </div>`;
  }
  if (module.loading) return null;
  if (module.error) return html`<div class="page"><${Failed} error=${module.error} /></div>`;
  return html`<${module.value} run=${run} id=${id} params=${params} />`;
}

/** Loads the trajectory page while nothing else happens: a click on a row then waits for data alone. */
function useTrajectoryPageLoaded(run) {
  useEffect(() => {
    if (!run) return undefined;
    // a failure shows where the page is asked for
    const wish = requestIdleCallback(() => MODULES.trajectory().catch(() => {}));
    return () => cancelIdleCallback(wish);
  }, [run]);
}

function useShellKeys(run) {
  const pages = TABS.map(([name, title, key]) => ({
    key: `g ${key}`,
    help: title,
    run: () => go(link(name, { run })),
  }));
  useKeys("Anywhere", [
    { key: "?", help: "these keys", run: () => (helpShown.value = true) },
    { key: "g r", help: "Runs", run: () => go(link("runs")) },
    ...(run ? pages : []),
    { key: "T", help: "light or dark", run: toggle },
    { key: "/", help: "search", run: () => search(run) },
  ]);
}

/** Focuses the page's search; a page of a run without one leads to the trajectories. */
function search(run) {
  const field = document.querySelector("[data-search]");
  if (field) {
    field.focus();
    field.select?.();
  } else if (run) {
    go(link("trajectories", { run, search: 1 }));
  }
}

function skip(event, main) {
  event.preventDefault(); // the fragment is the route
  main.focus();
}

listenToKeys();
listenToRoute();
listenToTheme();
bind("Anywhere", [
  { key: "Escape", help: "leave a field", typing: true, run: (event) => event.target.blur?.() },
]);
render(html`<${App} />`, document.getElementById("app"));
