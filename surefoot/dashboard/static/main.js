// Puts the page together: reads the list, listens for news, reacts to clicks and keys.

import { ask, listen } from "./api.js";
import { $, el, fill } from "./dom.js";
import { drawInspector, playerOf, watch } from "./inspector.js";
import { drawList, focus, groupsOf, select, visible } from "./list.js";
import { AXES, TABS, change, chosen, onChange, recall, state, switchTheme } from "./state.js";
import { drawView, hasCharts, redraw, refreshCharts } from "./views.js";

const SHORTCUTS = [
  ["/", "find runs"], ["j  k", "next, previous run"], ["space", "show or hide the run in focus"], ["a", "only the run in focus, with its seeds"],
  ["1 – 4", "curves, instruments, compare, settings"], ["x", "steps, updates, wall time"], ["g", "group seeds"], ["s", "smoothing"],
  ["w", "watch the newest policy"], ["p", "open the player"], ["r", "reset all zooms"], ["d", "dark or light"], ["?", "this list"], ["esc", "close, or leave the search"],
];
const SMOOTH = [[0, "no smoothing"], [0.01, "slightly smooth"], [0.03, "smooth"], [0.1, "very smooth"]];

function controls() {
  fill($("tabs"), Object.entries(TABS).map(([key, name]) => el("button", {
    role: "tab", "aria-selected": state.tab === key, "data-tab": key, onclick: () => change({ tab: key }),
  }, name)));
  const charts = state.tab === "curves" || state.tab === "instruments";
  fill($("controls"), charts ? [
    choose("x", "Horizontal axis", Object.entries(AXES), state.x, (x) => change({ x }, "axis")),
    choose("smooth", "Smoothing", SMOOTH, state.smooth, (value) => change({ smooth: Number(value) })),
    choose("middle", "Seeds", [["iqm", "IQM of seeds"], ["mean", "mean of seeds"], ["none", "every seed"]],
      state.group === "none" ? "none" : state.middle,
      (value) => change(value === "none" ? { group: "none" } : { group: "seeds", middle: value })),
  ] : []);
}

function choose(id, label, options, value, then) {
  const node = el("select", { id, "aria-label": label, title: label, onchange: (event) => then(event.target.value) },
    options.map(([key, name]) => el("option", { value: key }, name)));
  node.value = String(value);
  return node;
}

function react(what) {
  controls();
  drawList();
  drawInspector();
  if (what === "axis") redraw();
  else drawView();
}

function news({ changed, gone, latest }) {
  for (const id of gone) state.runs.delete(id);
  for (const run of changed) state.runs.set(run.id, run);
  const before = state.latest;
  state.latest = latest;
  state.runs = new Map([...state.runs].sort(([a, first], [b, second]) => second.created - first.created || a.localeCompare(b)));
  if (latest !== before && (!state.selected.size || (!chosen().length))) start();
  drawList();
  const touched = new Set([...changed.map((run) => run.id), ...gone]);
  if (gone.some((id) => state.selected.has(id)) || !chosen().length) drawView();
  else if (chosen().some((id) => touched.has(id))) follow();
  if (touched.has(state.focus)) drawInspector();
}

// New rows of chosen runs: charts ask for them every other second, and now and then whether there are new metrics. The
// cores belong to the training.
let waiting = null, last = 0, whole = 0;
function follow() {
  if (waiting !== null) return;
  waiting = setTimeout(() => {
    waiting = null;
    last = Date.now();
    if (last - whole > 10000 || !hasCharts()) { whole = last; drawView(); } else refreshCharts();
  }, Math.max(0, last + 2000 - Date.now()));
}

// If nothing is chosen, choose the latest run with its seeds.
function start() {
  const run = state.runs.get(state.latest);
  if (!run) return;
  const seeds = [...state.runs.values()].filter((other) => run.group && other.group === run.group);
  state.selected = new Set((seeds.length ? seeds : [run]).map((other) => other.id));
  state.focus = run.id;
}

async function load() {
  const answer = await ask("/api/runs");
  state.runs = new Map(answer.runs.map((run) => [run.id, run]));
  state.latest = answer.latest;
  $("root").textContent = answer.root;
  $("root").title = answer.path;
  if (!chosen().length) start();
  if (!state.runs.has(state.focus)) state.focus = chosen()[0] ?? null;
  react("selection");
}

function live(kind) {
  const text = { live: "live", lost: "reconnecting", waiting: "connecting" }[kind];
  if ($("live").dataset.state === "lost" && kind === "live") load();
  $("live").dataset.state = kind;
  $("live").textContent = text;
}

function theme() {
  switchTheme();
  react("theme");
  refreshCharts();
}

function help() {
  const dialog = $("shortcuts");
  if (dialog.open) { dialog.close(); return; }
  fill(dialog, el("h2", {}, "Shortcuts"),
    el("dl", {}, SHORTCUTS.map(([keys, what]) => [el("dt", {}, keys.split("  ").map((key) => el("kbd", {}, key))), el("dd", {}, what)])),
    el("p", { class: "quiet" }, "Drag in a chart to zoom in, double-click to zoom out. A word with - in front of it excludes runs from the list."),
    el("button", { onclick: () => dialog.close() }, "Close"));
  dialog.showModal();
}

// The runs in the order of the list.
const inOrder = () => groupsOf(visible()).flatMap(([, runs]) => runs);

function move(by) {
  const runs = inOrder(), at = runs.findIndex((run) => run.id === state.focus);
  const next = runs[Math.max(0, Math.min(runs.length - 1, at < 0 ? 0 : at + by))];
  if (!next) return;
  if (next.group) state.open.add(next.group);
  change({ focus: next.id }, "selection");
  document.querySelector(".list > :not(.pinned) [data-focus=true], .list > .item[data-focus=true]")?.scrollIntoView({ block: "nearest" });
}

function only() {
  const run = state.runs.get(state.focus);
  if (!run) return;
  state.selected = new Set([...state.runs.values()].filter((other) => (run.group ? other.group === run.group : other === run)).map((other) => other.id));
  change({}, "selection");
}

const cycle = (keys, now) => keys[(keys.indexOf(now) + 1) % keys.length];

const KEYS = {
  "/": () => { document.body.classList.add("drawer"); $("search").focus(); },
  j: () => move(1), k: () => move(-1), a: only,
  " ": () => { const run = state.runs.get(state.focus); if (run) select([run], !state.selected.has(run.id)); },
  x: () => change({ x: cycle(Object.keys(AXES), state.x) }, "axis"),
  g: () => change({ group: state.group === "seeds" ? "none" : "seeds" }),
  s: () => change({ smooth: cycle(SMOOTH.map(([value]) => value), state.smooth) }),
  w: () => state.focus && watch(state.focus),
  p: () => { if (state.focus) location.href = playerOf(state.focus); },
  r: redraw, d: theme, "?": help,
};
Object.keys(TABS).forEach((tab, index) => { KEYS[index + 1] = () => change({ tab }); });

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") { $("search").blur(); document.body.classList.remove("drawer"); return; }
  const typing = event.target.matches("input[type=search], input[type=number], select, textarea");
  const pressing = event.target.matches("button, input, summary, a") && (event.key === " " || event.key === "Enter");
  if (typing || pressing || event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  event.preventDefault();
  KEYS[event.key]();
});

$("search").addEventListener("input", (event) => { state.filter = event.target.value; drawList(); });
$("search").addEventListener("keydown", (event) => {
  const [first] = visible();
  if (event.key === "Enter" && first) focus(first);
});
$("clear").addEventListener("click", () => { state.selected.clear(); change({ focus: null }, "selection"); });
$("theme").addEventListener("click", theme);
$("help").addEventListener("click", help);
$("drawer").addEventListener("click", () => {
  const open = document.body.classList.toggle("drawer");
  $("drawer").setAttribute("aria-expanded", open);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => react("theme"));
setInterval(() => { if (document.visibilityState === "visible") { drawInspector(); } }, 5000);

recall();
onChange(react);
controls();
load().catch((error) => fill($("view"), el("p", { class: "warn" }, error.message))).finally(() => listen(news, live));
