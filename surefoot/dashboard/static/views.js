// The four views: curves, instruments, a comparison, settings.

import { ask } from "./api.js";
import { Chart } from "./charts.js";
import { $, code, el, empty, fill, number } from "./dom.js";
import { swatch } from "./list.js";
import { change, chosen, keyOf, state, style } from "./state.js";

const USUAL = ["episode_return", "eval_return", "episode_length", "entropy", "kl"]; // the first four that there are
let charts = [];
let known = []; // the metrics of the chosen runs
let named = []; // the groups of the chosen runs, with their labels
let shown = ""; // what the view was built for
let turn = 0;

export function refreshCharts() {
  for (const chart of charts) chart.refresh();
}

export const hasCharts = () => charts.length > 0;

export function redraw() {
  shown = "";
  drawView();
}

export async function drawView() {
  const runs = chosen(), view = $("view"), mine = ++turn;
  if (!runs.length) {
    show(view, `none ${state.runs.size}`, () => [state.runs.size
      ? empty("Choose runs on the left", "Tick one or more. Runs that differ only in their seed are drawn as one curve with a band.", ["Press ", el("kbd", {}, "?"), " for the shortcuts."])
      : empty("No runs here yet", ["Start one, and it will appear here: ", code("surefoot train CartPole-v1")], "The page checks once a second; you need not reload it.")]);
    return;
  }
  try {
    if (state.tab === "curves" || state.tab === "instruments") {
      const { metrics, groups } = await ask("/api/metrics", { run: runs, group: state.group });
      if (mine !== turn) return;
      [known, named] = [metrics, groups];
      state.tab === "curves" ? curves(view) : instruments(view);
    } else if (state.tab === "compare") {
      await compare(view, runs, mine);
    } else {
      await settings(view, runs, mine);
    }
  } catch (error) {
    if (mine === turn) show(view, `error ${error.message}`, () => [empty("This cannot be shown", error.message)]);
  }
}

// Build a view only if it is another one: charts that stay keep their zoom.
function show(view, key, build) {
  if (shown === key) return false;
  for (const chart of charts) chart.close();
  charts = [];
  shown = key;
  fill(view, build());
  return true;
}

function curves(view) {
  const names = known.map((metric) => metric.name);
  const usual = USUAL.filter((name) => names.includes(name)).slice(0, 4);
  const metrics = state.metrics.length ? state.metrics : usual.length ? usual : names.slice(0, 2);
  const key = `curves ${metrics.join(" ")} / ${names.join(" ")}`;
  if (!names.length) {
    const why = chosen().map((id) => state.runs.get(id).why);
    if (why.every(Boolean)) show(view, `unread ${why}`, () => [empty("The chosen runs cannot be read", ...why)]);
    else show(view, "waiting", () => [empty("Waiting for the first row", "The chosen runs have not logged anything yet.")]);
    return;
  }
  const built = show(view, key, () => {
    charts = metrics.map((metric) => new Chart(known.find((one) => one.name === metric) ?? { name: metric }, {
      onClose: () => change({ metrics: metrics.filter((other) => other !== metric) }),
    }));
    return [el("div", { id: "legend", class: "legend" }), el("div", { class: "charts" }, charts.map((chart) => chart.node)), adder(metrics, names)];
  });
  legend();
  if (!built) refreshCharts();
}

function adder(metrics, names) {
  const rest = names.filter((name) => !metrics.includes(name)).sort();
  return el("div", { class: "adder" }, el("select", {
    id: "add", "aria-label": "Add a chart",
    onchange: (event) => change({ metrics: [...metrics, event.target.value] }),
  }, el("option", { value: "" }, "Add a chart …"), rest.map((name) => el("option", { value: name }, name))));
}

function instruments(view) {
  const found = known.filter((metric) => metric.instrument);
  const built = show(view, `instruments ${found.map((metric) => metric.name).join(" ")}`, () => {
    charts = found.map((metric) => new Chart(metric, { small: true }));
    return [
      el("div", { id: "legend", class: "legend" }),
      el("p", { class: "quiet lead" }, "How large each update was, and what it did. Healthy ranges are shaded where they are known."),
      charts.length ? el("div", { class: "charts tiles" }, charts.map((chart) => chart.node)) : empty("No instruments", "The chosen runs log none of them yet."),
    ];
  });
  legend();
  if (!built) refreshCharts();
}

function legend() {
  const node = $("legend");
  if (!node) return;
  const seeds = new Map();
  for (const id of chosen()) seeds.set(keyOf(state.runs.get(id)), (seeds.get(keyOf(state.runs.get(id))) ?? 0) + 1);
  fill(node, named.map(({ key, label }) => el("span", { class: "entry" }, swatch(key), label)),
    el("span", { class: "quiet" }, [...seeds.values()].some((count) => count > 1)
      ? `line: ${state.middle === "iqm" ? "interquartile mean" : "mean"} over seeds · band: all seeds, or the middle half from five seeds on` : ""));
}

async function compare(view, runs, mine) {
  const { metrics } = await ask("/api/metrics", { run: runs });
  const names = metrics.map((metric) => metric.name);
  const metric = names.includes(state.metrics[0]) ? state.metrics[0] : ["eval_return", "episode_return"].find((name) => names.includes(name)) ?? names[0];
  if (!metric) { show(view, "compare none", () => [empty("Nothing to compare yet", "The chosen runs have not logged anything.")]); return; }
  const answer = await ask("/api/compare", { run: runs, metric });
  if (mine !== turn) return;
  const key = `compare ${JSON.stringify(answer)}`;
  show(view, key, () => [
    el("p", { class: "quiet lead" }, `${metric}, mean over the last tenth of each run. Intervals are 95 %, over seeds.`),
    el("div", { class: "scroll" }, groupTable(answer)),
    answer.pairs.length ? el("div", { class: "scroll" }, pairTable(answer)) : el("p", { class: "quiet" }, "Choose runs of another algorithm or setting on the same env to see which is better."),
  ]);
}

function groupTable({ groups }) {
  const all = groups.flatMap((group) => [...group.iqm, ...group.scores]).filter((value) => value !== null);
  const low = Math.min(...all), high = Math.max(...all), envs = new Set(groups.map((group) => group.env));
  return el("table", {},
    envs.size === 1 ? el("caption", {}, ...envs) : null,
    el("thead", {}, el("tr", {}, ["group", "seeds", "IQM", "95 % interval", "mean", ""].map((name) => el("th", {}, name)))),
    el("tbody", {}, groups.map((group) => el("tr", {},
      el("td", {}, called(group)), el("td", { class: "num" }, group.runs),
      el("td", { class: "num strong" }, number(group.iqm[0])), el("td", { class: "num" }, range(group.iqm)), el("td", { class: "num" }, number(group.mean[0])),
      el("td", { class: "wide" }, strip(group, low, high))))));
}

const called = (group) => el("span", { class: "called" }, swatch(group.key), el("span", {}, group.label));

function range([, low, high], digits = 4) {
  return low === null ? "one seed" : `${number(low, digits)} to ${number(high, digits)}`;
}

// Seeds as dots and the interval as a bar, on the scale of all groups.
function strip(group, low, high) {
  const width = 240, at = (value) => (high > low ? 6 + ((value - low) / (high - low)) * (width - 12) : width / 2);
  const colour = style(group.key)?.color ?? "currentColor";
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${width} 20`);
  svg.setAttribute("class", "strip");
  const add = (tag, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    svg.append(node);
  };
  add("line", { x1: 6, x2: width - 6, y1: 10, y2: 10, class: "rule" });
  const [value, from, to] = group.iqm;
  if (from !== null) add("rect", { x: Math.max(0, at(from)), width: Math.max(1, Math.min(width, at(to)) - Math.max(0, at(from))), y: 6, height: 8, rx: 2, fill: colour, "fill-opacity": 0.25 });
  for (const score of group.scores) add("circle", { cx: at(score), cy: 10, r: 2.2, fill: colour, "fill-opacity": 0.6 });
  if (value !== null) add("line", { x1: at(value), x2: at(value), y1: 3, y2: 17, stroke: colour, "stroke-width": 2.5 });
  return svg;
}

function pairTable({ groups, pairs }) {
  return el("table", { class: "pairs" },
    el("caption", {}, "Which is better?"),
    el("thead", {}, el("tr", {}, ["first and second", "P(first beats second)", "verdict"].map((name) => el("th", {}, name)))),
    el("tbody", {}, pairs.map((pair) => el("tr", {},
      el("td", {}, el("div", {}, called(groups[pair.first])), el("div", {}, called(groups[pair.second]))),
      el("td", { class: "num" }, el("b", {}, number(pair.improvement[0], 2)), el("div", { class: "quiet" }, range(pair.improvement, 2))),
      el("td", {}, verdict(pair))))));
}

function verdict(pair) {
  if (pair.settled) return pair.improvement[0] > 0.5 ? "the first is better" : "the second is better";
  if (pair.improvement[1] === null) return "one seed each cannot tell";
  return pair.seeds_needed ? `not settled; about ${pair.seeds_needed} seeds each would settle it` : "no visible difference";
}

async function settings(view, runs, mine) {
  const answer = await ask("/api/config", { run: runs });
  if (mine !== turn) return;
  const all = Object.keys(answer.settings);
  const table = (names) => el("div", { class: "scroll" }, el("table", { class: "settings" },
    el("thead", {}, el("tr", {}, el("th", {}, "setting"), answer.groups.map((group) => el("th", {}, swatch(group.key), group.label)))),
    el("tbody", {}, names.map((name) => el("tr", {}, el("th", {}, name), answer.settings[name].map((value) => el("td", {}, value)))))));
  show(view, `settings ${JSON.stringify(answer)}`, () => [
    runs.length > 1 ? el("h2", {}, answer.different.length ? "Differences" : "No differences") : null,
    runs.length > 1 && answer.different.length ? table(answer.different) : null,
    runs.length > 1 && !answer.different.length ? el("p", { class: "quiet" }, "The chosen runs have the same settings.") : null,
    el("details", { open: runs.length === 1 }, el("summary", {}, `All ${all.length} settings`), table(all)),
  ]);
}
