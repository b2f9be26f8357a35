// What the page shows, kept in the address: a bookmark, a reload or the back button brings it back.

export const AXES = { step: "steps", update: "updates", seconds: "wall time" };
export const TABS = { curves: "Curves", instruments: "Instruments", compare: "Compare", settings: "Settings" };
export const DEFAULTS = { tab: "curves", x: "step", smooth: 0, group: "seeds", middle: "iqm", metrics: [], log: [] };

export const state = {
  runs: new Map(), // id -> what the server says about it, newest first
  latest: null,
  selected: new Set(),
  focus: null,
  filter: "",
  open: new Set(), // groups whose seeds are listed
  ...DEFAULTS,
};

const listeners = new Set();
export const onChange = (listener) => listeners.add(listener);

export function change(values, what = "view") {
  Object.assign(state, values);
  remember();
  for (const listener of listeners) listener(what);
}

export const keyOf = (run) => (state.group === "seeds" ? run.group || run.id : run.id);

export function chosen() {
  return [...state.selected].filter((id) => state.runs.has(id));
}

function remember() {
  const parts = new URLSearchParams();
  for (const id of state.selected) parts.append("run", id);
  if (state.focus) parts.set("focus", state.focus);
  for (const [name, value] of Object.entries(DEFAULTS)) {
    if (name === "metrics") for (const metric of state.metrics) parts.append("metric", metric);
    else if (name === "log") for (const metric of state.log) parts.append("log", metric);
    else if (state[name] !== value) parts.set(name, state[name]);
  }
  const hash = `#${parts}`;
  if (hash !== location.hash) history.replaceState(null, "", hash);
}

export function recall() {
  const parts = new URLSearchParams(location.hash.slice(1));
  state.selected = new Set(parts.getAll("run"));
  state.focus = parts.get("focus");
  state.metrics = parts.getAll("metric");
  state.log = parts.getAll("log");
  if (parts.get("x") in AXES) state.x = parts.get("x");
  if (parts.get("tab") in TABS) state.tab = parts.get("tab");
  if (parts.get("group") === "none") state.group = "none";
  if (parts.get("middle") === "mean") state.middle = "mean";
  const smooth = Number(parts.get("smooth"));
  if (smooth > 0 && smooth <= 0.3) state.smooth = smooth;
}

// A colour stays with its curve as long as that is shown. Okabe and Ito's, legible for colour-blind readers.
const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#b8478b", "#8a6d00", "#3a9bd9", "#5b4fbf", "#4d4d4d"];
const DARK = ["#4aa8e8", "#ff8c42", "#2fc79a", "#e58abf", "#e0c04a", "#8ecdf5", "#a79cff", "#c4c4c4"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const slots = new Map();

export function style(key) {
  const shown = new Set(chosen().map((id) => keyOf(state.runs.get(id))));
  for (const known of [...slots.keys()]) if (!shown.has(known)) slots.delete(known);
  if (!slots.has(key) && shown.has(key)) {
    const taken = new Set(slots.values());
    let slot = 0;
    while (taken.has(slot)) slot += 1;
    slots.set(key, slot);
  }
  const slot = slots.get(key);
  if (slot === undefined) return null;
  const palette = isDark() ? DARK : LIGHT;
  return { color: palette[slot % palette.length], dash: DASHES[Math.floor(slot / palette.length) % DASHES.length] };
}

export function isDark() {
  const set = document.documentElement.dataset.theme;
  return set ? set === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function switchTheme() {
  const next = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try { localStorage.setItem("surefoot-theme", next); } catch { /* storage is switched off */ }
}
