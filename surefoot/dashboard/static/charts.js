// One chart: asks for its curves when something changed and it can be seen, and asks again, more finely, after a zoom.

import { ask } from "./api.js";
import { el } from "./dom.js";
import { AXES, change, chosen, isDark, state, style } from "./state.js";

const TIMES = [["hours", 3600, 7200], ["minutes", 60, 600], ["seconds", 1, 0]];

// Plotly's script is large: the list of runs does not wait for it.
const plotly = new Promise((resolve) => {
  if (window.Plotly) resolve();
  else document.getElementById("plotly").addEventListener("load", resolve);
});

export class Chart {
  constructor({ name: metric, healthy = null, meaning = "", range = "" }, { small = false, onClose = null } = {}) {
    this.metric = metric;
    this.healthy = healthy;
    this.small = small;
    this.zoom = null; // [from, to] in the server's units
    this.seen = false;
    this.stale = true;
    this.asked = 0;
    this.unit = ["", 1];
    this.plot = el("div", { class: "plot" });
    this.note = el("p", { class: "note quiet", role: "status" });
    this.node = el("figure", { class: small ? "chart small" : "chart", "data-metric": metric },
      el("figcaption", {},
        el("span", { class: "metric", title: meaning }, metric),
        this.tools = el("span", { class: "tools" },
          this.reset = el("button", { class: "plain", hidden: true, onclick: () => this.unzoom() }, "Reset zoom"),
          this.scale = el("button", { class: "plain", hidden: true, title: "Logarithmic scale", "aria-label": `${metric}: logarithmic scale`, onclick: () => this.rescale() }, "log"),
          onClose ? el("button", { class: "plain", title: "Remove this chart", "aria-label": `Remove ${metric}`, onclick: onClose }, "✕") : null)),
      small && meaning ? el("p", { class: "meaning quiet", title: meaning }, meaning) : null,
      this.plot, small && range ? el("p", { class: "healthy quiet" }, `healthy: ${range}`) : null, this.note);
    this.watcher = new IntersectionObserver(([entry]) => {
      this.seen = entry.isIntersecting;
      if (this.seen && this.stale) this.refresh();
    }, { rootMargin: "200px" });
    this.watcher.observe(this.node);
  }

  close() {
    this.watcher.disconnect();
    if (this.drawn) window.Plotly.purge(this.plot);
  }

  unzoom() {
    this.zoom = null;
    this.refresh();
  }

  get isLog() { return state.log.includes(this.metric); }

  rescale() {
    change({ log: this.isLog ? state.log.filter((metric) => metric !== this.metric) : [...state.log, this.metric] });
  }

  // Called whenever a chosen run has new rows; a request in progress is followed by one more.
  async refresh() {
    this.stale = true;
    if (!this.seen) return;
    if (this.busy) { this.again = true; return; }
    this.busy = true;
    this.stale = false;
    try {
      const runs = chosen();
      const answer = await ask("/api/curves", {
        metric: this.metric, run: runs, x: state.x, smooth: state.smooth, group: state.group, middle: state.middle,
        from: this.zoom?.[0], to: this.zoom?.[1],
      });
      await plotly;
      this.draw(answer.curves);
    } catch (error) {
      this.note.textContent = error.message;
    } finally {
      this.busy = false;
      if (this.again) { this.again = false; this.refresh(); }
    }
  }

  draw(curves) {
    const known = curves.filter((curve) => curve.x.length);
    this.unit = this.unitOf(known);
    const traces = known.flatMap((curve) => this.traces(curve));
    const sampled = known.some((curve) => curve.sampled);
    this.note.textContent = !known.length
      ? (this.zoom ? "Nothing in this range." : "No values yet.")
      : sampled ? "A sample of a long log; zoom in for every row." : "";
    this.reset.hidden = !this.zoom;
    const [low, high] = extent(known);
    this.scale.hidden = !this.isLog && !(low >= 0 && high > 0);
    this.scale.setAttribute("aria-pressed", this.isLog);
    window.Plotly.react(this.plot, traces, this.layout(known), { responsive: true, displayModeBar: false, doubleClick: false });
    if (!this.drawn) {
      this.drawn = true;
      this.plot.on("plotly_relayout", (event) => this.zoomed(event));
      this.plot.on("plotly_doubleclick", () => this.unzoom());
    }
  }

  unitOf(curves) {
    if (state.x !== "seconds") return [AXES[state.x], 1];
    const longest = Math.max(0, ...curves.map((curve) => curve.x.at(-1)));
    const [name, size] = TIMES.find(([, , from]) => longest >= from);
    return [name, size];
  }

  traces(curve) {
    const { color, dash } = style(curve.key) ?? { color: "#888", dash: "solid" };
    const scaled = (x) => (this.unit[1] === 1 ? x : x.map((value) => value / this.unit[1]));
    const x = scaled(curve.x);
    const base = { type: "scatter", mode: "lines", x, name: curve.label, legendgroup: curve.key, showlegend: false };
    const line = { ...base, y: curve.y, line: { color, dash, width: 2 } };
    if (curve.x.length === 1) Object.assign(line, { mode: "markers", marker: { color, size: 7 } });
    if (curve.low) {
      const edge = { ...base, hoverinfo: "skip", line: { width: 0, color } };
      return [{ ...edge, y: curve.low }, { ...edge, y: curve.high, fill: "tonexty", fillcolor: faint(color, 0.18) }, line];
    }
    if (!curve.smooth_y) return [line];
    return [
      { ...line, hoverinfo: "skip", line: { color: faint(color, 0.28), width: 1 } },
      { ...line, x: scaled(curve.smooth_x), y: curve.smooth_y },
    ];
  }

  layout(curves) {
    const css = getComputedStyle(document.documentElement);
    const ink = css.getPropertyValue("--quiet").trim(), rule = css.getPropertyValue("--rule").trim();
    const axis = { gridcolor: rule, linecolor: rule, zeroline: false, automargin: true, tickfont: { size: 11 } };
    const x = { ...axis, title: { text: this.unit[0], font: { size: 11 }, standoff: 6 }, showgrid: false, exponentformat: "SI" };
    x.autorange = !this.zoom;
    if (this.zoom) x.range = this.zoom.map((value) => value / this.unit[1]);
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: css.getPropertyValue("--font").trim(), color: ink, size: 12 },
      height: this.small ? 200 : 300, margin: { l: 8, r: 12, t: 6, b: 8 },
      xaxis: x, yaxis: { ...axis, type: this.isLog ? "log" : "linear", nticks: this.small ? 4 : 6, exponentformat: this.exponents(curves) },
      hovermode: curves.length <= 8 ? "x unified" : "closest", dragmode: "zoom",
      hoverlabel: { bgcolor: css.getPropertyValue("--card").trim(), bordercolor: rule, font: { color: css.getPropertyValue("--ink").trim(), size: 12 }, namelength: 40 },
      shapes: this.shade(curves), uirevision: `${state.x} ${this.isLog} ${this.zoom ?? ""}`,
    };
  }

  // Not Plotly's superscripts: they set a style inline, which the page's policy forbids.
  exponents(curves) {
    return extent(curves)[1] >= 1000 && !this.isLog ? "SI" : "e";
  }

  // The healthy range, as far as the curves reach: a shape must not stretch the axis.
  shade(curves) {
    if (!this.healthy || !curves.length) return [];
    const [low, high] = extent(curves, this.isLog ? 0 : -Infinity);
    const from = Math.max(low, this.healthy[0] ?? -Infinity), to = Math.min(high, this.healthy[1] ?? Infinity);
    if (!(from < to)) return [];
    return [{ type: "rect", xref: "paper", x0: 0, x1: 1, y0: from, y1: to, layer: "below", line: { width: 0 }, fillcolor: isDark() ? "rgba(47,199,154,.10)" : "rgba(0,158,115,.09)" }];
  }

  zoomed(event) {
    const from = event["xaxis.range[0]"] ?? event["xaxis.range"]?.[0], to = event["xaxis.range[1]"] ?? event["xaxis.range"]?.[1];
    if (from === undefined || to === undefined) return;
    this.zoom = [Number(from) * this.unit[1], Number(to) * this.unit[1]];
    this.refresh();
  }
}

// The lowest and the highest value of any curve, of those above `above`.
function extent(curves, above = -Infinity) {
  let [low, high] = [Infinity, -Infinity];
  for (const { y, low: lower = [], high: upper = [] } of curves) {
    for (const values of [y, lower, upper]) {
      for (const value of values) if (value > above) { low = Math.min(low, value); high = Math.max(high, value); }
    }
  }
  return [low, high];
}

function faint(color, opacity) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return `rgba(${r},${g},${b},${opacity})`;
}
