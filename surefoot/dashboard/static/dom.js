// Elements are made here and nowhere else, and text is always text: a run's name is never read as HTML.

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    const says = name.startsWith("aria-") || name.startsWith("data-"); // these say "true" and "false" in words
    if (value === null || value === undefined || (value === false && !says)) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "muted") node[name] = value;
    else node.setAttribute(name, value === true && !says ? "" : String(value));
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function fill(node, ...children) {
  node.textContent = "";
  append(node, children);
  return node;
}

export const $ = (id) => document.getElementById(id);

export function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3)) return value.toExponential(2);
  return Number(value.toPrecision(digits)).toLocaleString("en-US", { maximumFractionDigits: 4 });
}

// What a run trained, or null if its files do not say.
export const trained = (run) => (run.env || run.algo ? `${run.env ?? "?"} · ${run.algo ?? "?"}` : null);

export function steps(value) {
  if (value >= 1e9) return `${trim(value / 1e9)}B`;
  if (value >= 1e6) return `${trim(value / 1e6)}M`;
  if (value >= 1e3) return `${trim(value / 1e3)}k`;
  return String(value);
}

const trim = (x) => Number(x.toPrecision(3)).toString();

export function ago(seconds) {
  const past = Math.max(0, Date.now() / 1000 - seconds);
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (past >= size) return `${Math.floor(past / size)} ${unit} ago`;
  }
  return past < 20 ? "just now" : `${Math.floor(past)} s ago`;
}

export function empty(title, ...lines) {
  return el("div", { class: "empty" }, el("h2", {}, title), lines.map((line) => el("p", {}, line)));
}

export const code = (text) => el("code", {}, text);

// A sentence in which flags (--learning-rate) are not broken at their hyphens.
export const flagged = (text) => text.split(/(--[a-z][a-z-]*[a-z])/).map((part, i) => (i % 2 ? el("span", { class: "flag" }, part) : part));
