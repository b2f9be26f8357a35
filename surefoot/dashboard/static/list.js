// The list of runs: experiments with their seeds, the newest first, `latest` on top.

import { ask } from "./api.js";
import { $, ago, code, el, empty, fill, number, steps, trained } from "./dom.js";
import { change, state, style, keyOf } from "./state.js";

const MOST = 300; // experiments that are drawn at once; the search narrows them down
const MOST_ASKED = 200; // runs in one question to the server
let apart = {}; // by run: the settings in which experiments that look alike differ
let asked = "";

export function visible() {
  const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (run) => {
    const text = [run.id, run.name, run.env, run.algo, run.state, `seed=${run.seed}`, ...run.tags].join(" ").toLowerCase();
    return words.every((word) => (word.startsWith("-") && word.length > 1 ? !text.includes(word.slice(1)) : text.includes(word)));
  };
  return [...state.runs.values()].filter(fits);
}

export function groupsOf(runs) {
  const groups = new Map();
  for (const run of runs) {
    const key = run.group || run.id;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(run);
  }
  return [...groups.entries()];
}

export function drawList() {
  const runs = visible();
  $("count").textContent = runs.length === state.runs.size
    ? `${runs.length.toLocaleString("en-US")} ${runs.length === 1 ? "run" : "runs"}`
    : `${runs.length.toLocaleString("en-US")} of ${state.runs.size.toLocaleString("en-US")} runs`;
  $("clear").hidden = state.selected.size === 0;
  const list = $("list"), top = list.scrollTop;
  if (!state.runs.size) {
    fill(list, empty("No runs yet", ["Train one, and it will appear here: ", code("surefoot train CartPole-v1")]));
    return;
  }
  if (!runs.length) {
    fill(list, empty("No matching runs", ["Nothing matches “", state.filter, "”."]));
    return;
  }
  const latest = state.runs.get(state.latest);
  const groups = groupsOf(runs);
  fill(
    list,
    latest && runs.includes(latest) ? el("div", { class: "pinned" }, el("h2", {}, "Latest"), item(latest)) : null,
    el("h2", {}, "All runs"),
    groups.slice(0, MOST).map(([key, members]) => (members.length === 1 ? item(members[0]) : group(key, members))),
    groups.length > MOST ? el("p", { class: "quiet more" }, `${groups.length - MOST} more experiments; search to find them.`) : null,
  );
  list.scrollTop = top;
  tellApart(groups.slice(0, MOST).map(([, members]) => members[0]));
}

// Several experiments with one env and algorithm: ask once in which settings they differ, and show that.
async function tellApart(firsts) {
  const alike = new Map();
  for (const run of firsts) alike.set(`${run.env} ${run.algo}`, [...(alike.get(`${run.env} ${run.algo}`) ?? []), run.id]);
  const runs = [...alike.values()].filter((ids) => ids.length > 1).flat().slice(0, MOST_ASKED);
  if (runs.join("\n") === asked) return;
  asked = runs.join("\n");
  try {
    apart = runs.length ? (await ask("/api/apart", { run: runs })).apart : {};
    drawList();
  } catch { /* a run may be gone; the list is complete without this */ }
}

function group(key, members) {
  const open = state.open.has(key);
  const count = members.filter((run) => state.selected.has(run.id)).length;
  const first = members[0];
  const box = el("input", {
    type: "checkbox",
    checked: count === members.length,
    "aria-label": `Show all ${members.length} seeds of ${first.env} ${first.algo}`,
    onchange: (event) => select(members, event.target.checked),
  });
  box.indeterminate = count > 0 && count < members.length;
  const names = new Set(members.map((run) => run.name));
  const running = members.some((run) => run.state === "running");
  const values = members.map(score).filter((x) => x !== null);
  return el(
    "div", { class: "group" },
    el("div", { class: "item", "data-on": count > 0 },
      box, swatch(state.group === "seeds" && count ? key : null),
      el("button", { class: "what", "aria-expanded": open, onclick: () => toggle(key) },
        ...lines(first, apart[first.id], names.size === 1 ? first.name : null, running ? "running" : first.state, [`${members.length} seeds `, el("span", { class: "turn" }, open ? "▾" : "▸")])),
      right(values.length ? values.reduce((a, b) => a + b, 0) / values.length : null, first)),
    open ? el("div", { class: "seeds" }, members.map((run) => item(run, true))) : null,
  );
}

function item(run, seed = false) {
  const on = state.selected.has(run.id);
  const progress = run.total_steps ? Math.min(1, run.step / run.total_steps) : null;
  return el(
    "div", { class: "item", "data-on": on, "data-focus": state.focus === run.id, "data-run": run.id },
    el("input", { type: "checkbox", checked: on, "aria-label": `Show ${run.id}`, onchange: (event) => select([run], event.target.checked) }),
    swatch(on ? keyOf(run) : null),
    el("button", { class: "what", title: run.id, onclick: () => focus(run) },
      seed ? [el("span", { class: "title" }, `seed ${run.seed ?? "?"}`), el("span", { class: "quiet" }, dot(run.state), said(run))]
        : lines(run, apart[run.id], run.name, run.state, said(run))),
    right(score(run), run),
    run.state === "running" && progress !== null ? el("progress", { value: progress, max: 1, "aria-label": "progress" }) : null,
  );
}

const score = (run) => run.eval_return ?? run.episode_return;
const said = (run) => (run.why && !run.size ? "cannot be read" : `${steps(run.step)} steps`);
const right = (value, run) => el("span", { class: "value" }, number(value, 3), el("span", { class: "quiet" }, ago(run.created).replace(" ago", "")));

// The name, if there is one, or what was trained; below it the rest, and how it differs from others like it.
function lines(run, differs, name, kind, rest) {
  const what = trained(run);
  return [
    el("span", { class: "title" }, name ?? what ?? run.id),
    el("span", { class: "quiet" }, dot(kind), name && what ? `${what} · ` : "", rest),
    differs ? el("span", { class: "quiet differs", title: differs }, differs) : null,
  ];
}

export const dot = (kind) => el("span", { class: "dot", "data-state": kind, title: kind, role: "img", "aria-label": kind });

export function swatch(key) {
  const found = key ? style(key) : null;
  const node = el("span", { class: "swatch" });
  if (found) node.style.setProperty("background-color", found.color);
  return node;
}

function toggle(key) {
  if (state.open.has(key)) state.open.delete(key);
  else state.open.add(key);
  drawList();
}

export function select(runs, on) {
  for (const run of runs) {
    if (on) state.selected.add(run.id);
    else state.selected.delete(run.id);
  }
  change({ focus: on ? runs[0].id : state.focus }, "selection");
}

export function focus(run) {
  state.selected.add(run.id);
  document.body.classList.remove("drawer");
  change({ focus: run.id }, "selection");
}
