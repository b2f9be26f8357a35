// The run in focus, beside the curves: its state, how it plays, and its files.

import { ask, query } from "./api.js";
import { $, ago, el, fill, flagged, number, steps, trained } from "./dom.js";
import { filmed, pause } from "./films.js";
import { dot } from "./list.js";
import { state } from "./state.js";

const STATES = { running: "running", finished: "finished", stopped: "stopped; it can be resumed", crashed: "crashed or was killed; it can be resumed", unknown: "no sign of life" };
let shown = null; // the run whose parts are built
let parts = {};
let watching = null; // {run, step}
let asked = 0;

export async function drawInspector() {
  const run = state.runs.get(state.focus);
  const panel = $("inspector");
  panel.hidden = !run;
  if (!run) { shown = null; watching = null; return; }
  if (shown !== run.id) build(panel, run);
  facts(run);
  if (Date.now() - asked > 3000 || parts.details.childElementCount === 0) {
    asked = Date.now();
    try {
      const answer = await ask("/api/run", { run: run.id });
      if (shown === run.id) details(run, answer);
    } catch (error) {
      if (shown === run.id) fill(parts.details, run.why ? null : el("p", { class: "warn" }, error.message)); // once is enough
    }
  }
}

function build(panel, run) {
  shown = run.id;
  watching = null;
  asked = 0;
  parts = { facts: el("div"), player: el("div", { class: "player" }), details: el("div"), videos: "" };
  fill(panel, parts.facts, parts.player, parts.details, inside(run));
  player(run);
}

function facts(run) {
  const done = run.total_steps ? `${steps(run.step)} of ${steps(run.total_steps)} steps` : `${steps(run.step)} steps`;
  const quiet = run.state === "running" && run.heartbeat && Date.now() / 1000 - run.heartbeat > 120;
  fill(parts.facts,
    el("h2", {}, run.name ?? trained(run) ?? "A run"),
    el("p", { class: "quiet path" }, run.id),
    el("p", {}, dot(run.state), STATES[run.state], quiet ? `, last write ${ago(run.heartbeat)}` : ""),
    run.total_steps ? el("progress", { value: run.state === "finished" ? 1 : Math.min(1, run.step / run.total_steps), max: 1, "aria-label": "progress" }) : null,
    el("dl", {},
      row("progress", done), row("return", number(run.episode_return)), row("evaluation", number(run.eval_return)),
      row("seed", run.seed ?? "–"), row("started", ago(run.created)), run.tags.length ? row("tags", run.tags.join(", ")) : null),
    run.why ? el("p", { class: "warn" }, run.why) : null);
}

const row = (name, value) => [el("dt", {}, name), el("dd", {}, value)];

function player(run) {
  parts.video = el("video", { controls: true, loop: true, playsinline: true, muted: true, hidden: true });
  parts.caption = el("p", { class: "quiet" });
  parts.choice = el("select", { "aria-label": "Videos of the run", hidden: true, onchange: (event) => pick(run, event.target.value) });
  parts.watch = el("button", { id: "watch", title: "Film the newest policy (w)", onclick: () => watch(run.id) }, "▶ Watch");
  const open = el("a", { class: "button", title: "One episode after the other (p)", href: playerOf(run.id) }, "Open the player");
  fill(parts.player, parts.video, parts.caption, el("div", { class: "row" }, parts.watch, open, parts.choice));
}

export const playerOf = (id) => query("/play", { run: id });

function pick(run, file) {
  if (!file) return;
  watching = null;
  play(query("/video.mp4", { run: run.id, file }), file);
}

function play(source, caption) {
  parts.video.hidden = false;
  if (parts.video.getAttribute("src") !== source) {
    parts.video.setAttribute("src", source);
    parts.video.play().catch(() => {}); // a browser may want a click first
  }
  parts.caption.textContent = caption;
}

// Films the newest checkpoint, plays it, and goes on to the next one as long as the run is in focus.
export async function watch(id) {
  if (!state.runs.has(id)) return;
  const mine = { run: id, step: null };
  watching = mine;
  parts.watch.disabled = true;
  while (watching === mine && shown === id) {
    try {
      const film = await filmed(id, {
        wanted: () => watching === mine,
        begun: ({ step }) => { if (step !== mine.step) parts.caption.textContent = `filming step ${steps(step)} …`; },
      });
      if (watching !== mine) break;
      mine.step = film.step;
      play(query("/film.mp4", { run: id, step: film.step }), `step ${steps(film.shown ?? film.step)}, greedy${state.runs.get(id)?.state === "running" ? "; follows new checkpoints" : ""}`);
    } catch (error) {
      parts.caption.textContent = error.message;
      break;
    }
    if (state.runs.get(id)?.state !== "running") break;
    await pause(5000);
  }
  if (shown === id) parts.watch.disabled = false;
}

function details(run, answer) {
  const names = answer.videos.map((video) => video.file);
  if (names.join("/") !== parts.videos) {
    const first = parts.videos === "";
    parts.videos = names.join("/");
    fill(parts.choice, el("option", { value: "" }, names.length === 1 ? "1 video" : `${names.length} videos`), names.map((name) => el("option", { value: name }, name)).reverse());
    parts.choice.hidden = !names.length;
    if (names.length && first && !watching) pick(run, names.at(-1));
  }
  const open = new Set([...parts.details.querySelectorAll("details[open]")].map((node) => node.dataset.name));
  const block = (name, title, ...content) => el("details", { "data-name": name, open: open.has(name) }, el("summary", {}, title), content);
  const { steps: kept, latest, best } = answer.checkpoints;
  fill(parts.details,
    answer.diagnosis.length ? el("div", { class: "advice" }, el("h3", {}, "Diagnosis"), answer.diagnosis.map((said) => el("p", {}, el("b", {}, `since ${said.since}: `), flagged(said.text)))) : null,
    block("files", "Files and downloads",
      el("ul", { class: "files" },
        download("metrics.csv", run), download("config.toml", run), download("manifest.json", run)),
      el("p", { class: "quiet" }, "Checkpoints: ", kept.length ? kept.map((step) => `${steps(step)}${step === latest ? " (latest)" : ""}${step === best ? " (best)" : ""}`).join(", ") : "none yet"),
      el("p", { class: "quiet path" }, answer.path)),
    block("manifest", "Manifest", el("pre", {}, JSON.stringify(answer.manifest, null, 2))));
}

// One update, computed again by the server: `surefoot replay`.
function inside(run) {
  const number = el("input", { id: "update", type: "number", min: 1, value: 1, required: true, "aria-label": "Number of the update" });
  const said = el("div", { id: "replayed", role: "status" });
  const button = el("button", { type: "submit" }, "Replay");
  const form = el("form", { class: "row", onsubmit: async (event) => {
    event.preventDefault();
    button.disabled = true;
    said.textContent = "computing it again, from the nearest checkpoint before it …";
    try {
      fill(said, el("dl", {}, named((await ask("/api/replay", { run: run.id, update: number.value }, { method: "POST" })).text)));
    } catch (error) {
      said.textContent = error.message;
    }
    button.disabled = false;
  } }, el("label", { for: "update" }, "Update"), number, button);
  return el("details", { id: "inside" }, el("summary", {}, "Look inside an update"), form, said);
}

// Lines of a name and, after two spaces or more, what it is.
function named(text) {
  return text.trimEnd().split("\n").map((line) => {
    const [, name, value] = line.match(/^\s*(\S.*?)\s{2,}(.*)$/) ?? [null, "", line];
    return row(name, value);
  });
}

const download = (name, run) => el("li", {}, el("a", { href: query(`/download/${name}`, { run: run.id }), download: true }, name));
