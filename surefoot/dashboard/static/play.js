// The player: the newest policy of a run plays. Classic control is simulated here; any other env is filmed by the server.

import { inBrowser, onServer } from "./actors.js";
import { ask, query } from "./api.js";
import { $, el, fill, number, steps } from "./dom.js";
import { draw } from "./drawing.js";
import { filmed } from "./films.js";
import { switchTheme } from "./state.js";
import { worldOf } from "./worlds.js";

const run = new URLSearchParams(location.search).get("run") ?? "";
const HOLD = 900; // milliseconds for which the end of an episode is shown
const MOST = 64; // steps between two pictures
let world = null, actor = null, game = null, paused = false;
const results = [];

function note(text) {
  $("note").textContent = text ?? "";
  $("note").hidden = !text;
}

function begin() {
  actor.begin();
  game = { state: world.begin(), steps: 0, total: 0, action: null, over: null };
}

async function step() {
  const mine = game, action = await actor.act(world.observe(mine.state));
  if (mine !== game) return; // another episode has begun meanwhile
  const { state, reward, over } = world.step(mine.state, action);
  Object.assign(mine, { state, action, steps: mine.steps + 1, total: mine.total + reward });
  if (over || mine.steps >= world.limit) finish(over);
}

function finish(over) {
  game.over = performance.now();
  results.push(game.total);
  $("episodes").textContent = String(results.length);
  $("mean").textContent = number(results.reduce((sum, x) => sum + x, 0) / results.length);
  const why = over ? "the episode ended" : "the limit of steps";
  $("said").textContent = `Episode ${results.length}: return ${number(game.total)} after ${game.steps} steps (${why})`;
}

// −1 to 1: how hard the last action pushes.
function push() {
  if (game.action === null) return 0;
  if (world.choices) return (2 * game.action) / (world.choices - 1) - 1;
  const most = world.kind === "pendulum" ? 2 : 1;
  return Math.max(-1, Math.min(1, game.action / most));
}

function show() {
  draw($("stage"), world, game.state, push());
  $("step").textContent = String(game.steps);
  $("return").textContent = number(game.total);
  $("action").textContent = game.action === null ? "–" : world.actions?.[game.action] ?? game.action.toFixed(2);
  $("toggle").textContent = paused ? "Play" : "Pause";
}

const picture = () => new Promise((resolve) => requestAnimationFrame(resolve));

async function loop() {
  let before = performance.now(), due = 0;
  for (;;) {
    await picture();
    const now = performance.now(), speed = Number($("speed").value);
    due = paused ? 0 : Math.min(MOST, due + ((now - before) / 1000) * world.rate * speed);
    before = now;
    try {
      while (due >= 1 && !paused && game.over === null) {
        due -= 1;
        await step();
      }
    } catch (error) {
      paused = true;
      note(error.message);
    }
    if (!paused && game.over !== null && now - game.over > HOLD / speed) begin();
    show();
  }
}

async function use(where, facts) {
  $("actor").disabled = true;
  note(null);
  try {
    actor = where === "browser" ? await inBrowser(run, facts) : onServer(run, facts);
  } catch (error) {
    note(`The policy cannot be executed in this browser, so the server acts: ${error.message}`);
    actor = onServer(run, facts);
  }
  $("actor").value = actor.where;
  $("actor").disabled = false;
  results.length = 0;
  $("episodes").textContent = "0";
  $("mean").textContent = "–";
  begin();
}

async function live(facts) {
  const options = [["browser", "in this browser (WebAssembly)"], ["server", "on the server"]];
  fill($("actor"), options.map(([value, name]) => el("option", { value, disabled: value === "browser" && facts.why !== null }, name)));
  $("actor").addEventListener("change", (event) => use(event.target.value, facts));
  $("how").textContent = facts.why === null
    ? "The env is simulated in this page, and so is the policy: the C file that surefoot export writes, compiled to WebAssembly."
    : `The env is simulated in this page; the server chooses the actions, because ${facts.why}.`;
  $("stage").setAttribute("aria-label", `${facts.env}, played by the policy of step ${facts.step}`);
  await use(facts.why === null ? "browser" : "server", facts);
  $("live").hidden = false;
  await loop();
}

async function film(facts) {
  $("how").textContent = "The server is filming an episode …";
  const found = await filmed(run);
  $("film").hidden = false;
  $("film").setAttribute("src", query("/film.mp4", { run, step: found.step }));
  $("film").play().catch(() => {}); // a browser may want a click first
  $("how").textContent = facts.changed.length
    ? `Filmed by the server, because the run changes its env: ${facts.changed.join(", ")}.`
    : "Filmed by the server: this page can simulate classic control only.";
}

const again = () => { if (world && actor) begin(); };
const toggle = () => { if (world) paused = !paused; else if ($("film").paused) $("film").play().catch(() => {}); else $("film").pause(); };
const KEYS = { " ": toggle, n: again, d: switchTheme };

document.addEventListener("keydown", (event) => {
  const own = event.target.matches("select, video") || (event.target.matches("button, a") && event.key === " ");
  if (own || event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  event.preventDefault();
  KEYS[event.key]();
});
$("toggle").addEventListener("click", toggle);
$("again").addEventListener("click", again);
$("theme").addEventListener("click", switchTheme);

async function start() {
  $("back").setAttribute("href", `/#${new URLSearchParams({ run, focus: run })}`);
  $("about").textContent = run;
  await ask("/api/runs"); // a page that is opened first finds an empty catalog
  const facts = await ask("/api/player", { run });
  document.title = `${facts.env} · player · surefoot`;
  $("title").textContent = facts.step === null ? facts.env : `${facts.env}, policy of step ${steps(facts.step)}`;
  paused = matchMedia("(prefers-reduced-motion: reduce)").matches;
  world = worldOf(facts);
  await (world ? live(facts) : film(facts));
}

start().catch((error) => {
  $("title").textContent = "The player";
  $("how").textContent = "";
  note(error.message);
});
