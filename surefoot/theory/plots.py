"""The pictures of `surefoot theory`: one function per study, from its numbers to a figure. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from surefoot.drawing import BLACK, BLUE, GREEN, ORANGE, PINK, SKY, look, new_figure, save

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from surefoot.theory import results

DARK = "#00664B"  # green that can be read as text


def draw(study: str, numbers: Mapping[str, object], out: Path) -> None:
    """Draw a study's picture into a file."""
    with look():
        figure = new_figure(11.5, 4.8)
        PICTURES[study](figure, numbers)
        save(figure, out)


def _bound(figure: Figure, numbers: results.Bound) -> None:
    far, near, gammas = figure.subplots(1, 3, width_ratios=(1.2, 1.2, 1.0))
    zoom = numbers["curves"]["t"][-1] / numbers["zoom"]["t"][-1]
    promise = f"The bound never lies, and promises little: {_percent(numbers['share'])} of the gain in this direction"
    free = "γ = 0: no state follows another, so that L is η, and everything is trusted"
    figure.suptitle(promise if numbers["constant"] > 0.0 else free, fontweight="bold")
    for axes, curves in ((far, numbers["curves"]), (near, numbers["zoom"])):
        axes.axhline(numbers["old_return"], color=BLACK, linewidth=0.8, linestyle=":")
        axes.axvspan(0.0, numbers["trusted"], color=GREEN, alpha=0.18, linewidth=0.0)
        axes.plot(curves["t"], curves["expected_return"], color=BLUE)
        axes.plot(curves["t"], curves["surrogate"], color=ORANGE, linestyle="--")
        axes.plot(curves["t"], curves["lower_bound"], color=GREEN, linestyle="-.")
        axes.plot(0.0, numbers["old_return"], "o", color=BLACK)
        axes.set_xlabel("step t along the natural gradient")
        axes.set_xlim(curves["t"][0], curves["t"][-1])
    truth = np.array(numbers["curves"]["expected_return"])
    high = max(truth.max(), numbers["old_return"])
    room = 0.6 * (high - min(truth.min(), numbers["old_return"])) or 1.0
    far.set_ylim(min(truth.min(), numbers["old_return"]) - 0.25 * room, high + room)
    far.set_ylabel("expected return η")
    far.set_title("the whole walk")
    if zoom > 20.0:
        bottom = (numbers["trusted"], far.get_ylim()[0])
        far.annotate("trusted: this thin line", bottom, xytext=(26, 6), textcoords="offset points", color=DARK)
    lines = dict(zip(("η: the truth", "L: the surrogate", "L − C·KL: the bound"), far.lines[1:4], strict=True))
    far.legend(lines.values(), lines.keys(), loc="upper left")
    near.set_title(f"{zoom:,.0f} times closer: the trusted region" if zoom >= 2.0 else "the trusted region")
    near.annotate(
        "trusted:\nbound ≥ η(π)",
        (0.5 * numbers["trusted"], numbers["old_return"]),
        xytext=(0.42, 0.05),
        textcoords="axes fraction",
        ha="center",
        color=DARK,
    )
    near.ticklabel_format(useOffset=False)
    near.locator_params(axis="x", nbins=4)
    rows = [row for row in numbers["by_gamma"] if row["share"] > 1e-12]  # the rest is rounding
    horizon = [1.0 / (1.0 - row["gamma"]) for row in rows]
    gammas.loglog(horizon, [row["share"] for row in rows], "o-", color=PINK)
    gammas.set_xticks(horizon[::2] + horizon[-1:], [f"{row['gamma']:g}" for row in rows[::2] + rows[-1:]])
    gammas.minorticks_off()
    gammas.set_xlabel("γ (spaced by 1/(1−γ))")
    gammas.set_title("promised / possible gain, by γ")


def _surrogate(figure: Figure, numbers: results.Surrogate) -> None:
    left, right = figure.subplots(1, 2)
    figure.suptitle("The surrogate touches η at π in value and slope, and parts with it as t²", fontweight="bold")
    curves = numbers["curves"]
    left.plot(curves["t"], curves["expected_return"], color=BLUE, label="η: the truth")
    left.plot(curves["t"], curves["surrogate"], color=ORANGE, linestyle="--", label="L: states of π, actions of π̃")
    left.plot(0.0, numbers["old_return"], "o", color=BLACK, label="π")
    left.set_title("along one direction")
    left.set_xlabel("step t along the natural gradient")
    left.set_ylabel("expected return")
    left.legend(loc="best")
    gap = numbers["gap"]
    seen = np.array(gap["gap"]) > 1e-14
    t, size = np.array(gap["t"])[seen], np.array(gap["gap"])[seen]
    right.loglog(
        t, np.array(gap["price"])[seen], color=GREEN, linestyle="-.", label="C·D_KL^max: what the bound allows for"
    )
    right.loglog(t, size, color=BLUE, label="|η − L|: the error")
    if len(t):
        middle = len(t) // 3
        right.loglog(t, size[middle] * (t / t[middle]) ** 2, color=BLACK, linestyle=":", label="slope 2")
        dips = np.flatnonzero((size[1:-1] < 0.7 * size[:-2]) & (size[1:-1] < 0.7 * size[2:])) + 1
        for dip in dips[:1]:
            right.annotate(
                "η − L changes sign", (t[dip], size[dip]), xytext=(4, -18), textcoords="offset points", color=BLUE
            )
    right.set_xlabel("step t")
    right.set_title("L is η here" if numbers["order"] is None else f"error of L: order {numbers['order']:.2f} measured")
    right.legend(loc="best")


def _clip(figure: Figure, numbers: results.Clip) -> None:
    figure.set_size_inches(11.5, 6.2)
    panels = figure.subplots(2, 2, sharex=True, height_ratios=(1.6, 1.0))
    figure.suptitle(
        "Beyond the cut there is nothing left to gain; on the other side the way back stays open", fontweight="bold"
    )
    ratio, epsilon = np.array(numbers["ratio"]), numbers["clip_ratio"]
    for column, (own, sign) in enumerate(((numbers["positive"], 1.0), (numbers["negative"], -1.0))):
        top, bottom = panels[0, column], panels[1, column]
        cut = 1.0 + sign * epsilon
        for axes in (top, bottom):
            axes.axvspan(1.0 - epsilon, 1.0 + epsilon, color=SKY, alpha=0.2, linewidth=0.0)
            axes.axvline(1.0, color=BLACK, linewidth=0.8, linestyle=":")
        top.plot(ratio, sign * ratio, color=ORANGE, linestyle="--", label="r·A: not clipped")
        top.plot(ratio, own["objective"], color=BLUE, label="min(r·A, clip(r)·A)")
        top.plot(cut, sign * cut, "o", color=BLACK)
        top.annotate(
            f"cut at 1{'+' if sign > 0 else '−'}ε = {cut:g}",
            (cut, sign * cut),
            xytext=(12, -16) if sign > 0 else (-12, -16),
            textcoords="offset points",
            ha="left" if sign > 0 else "right",
        )
        top.set_title(f"A {'>' if sign > 0 else '<'} 0: the action was {'better' if sign > 0 else 'worse'} than usual")
        top.legend(loc="upper left" if sign > 0 else "lower left")
        bottom.plot(ratio, own["slope"], color=GREEN, drawstyle="steps-mid")
        bottom.axhline(0.0, color=BLACK, linewidth=0.8)
        bottom.set_ylim(-1.25, 1.25)
        bottom.set_xlabel("ratio r = π_θ(a|s) / π_old(a|s)   (shaded: 1±ε)")
    panels[0, 0].set_ylabel("objective of one sample")
    panels[1, 0].set_ylabel("its gradient in r")


def _step_size(figure: Figure, numbers: results.StepSize) -> None:
    land, curves = figure.subplots(1, 2, width_ratios=(1.0, 1.3))
    figure.suptitle(
        "Too small a step hardly climbs, too large a one falls off; a trust region does neither", fontweight="bold"
    )
    hill = numbers["landscape"]
    land.plot(hill["log_odds"], hill["expected_return"], color=BLACK)
    colours = (SKY, BLUE, ORANGE, "#E69F00", "#999999")
    plain = [run for run in numbers["runs"] if run["method"].startswith("gradient")]
    styles = {run["method"]: (colour, "--") for run, colour in zip(plain, colours, strict=False)}
    others = [run["method"] for run in numbers["runs"] if run["method"] not in styles]
    styles |= {name: (colour, "-") for name, colour in zip(others, (GREEN, PINK), strict=True)}
    low, high = hill["log_odds"][0], hill["log_odds"][-1]
    for run in numbers["runs"]:
        colour, line = styles[run["method"]]
        curves.plot(run["expected_return"], color=colour, linestyle=line, label=run["method"], linewidth=1.8)
    fallen = max(plain, key=lambda run: run["worst_drop"])
    fell = fallen["worst_drop"] > 0.5 * abs(numbers["summit"])
    if fell:
        path = [(min(max(x, low), high), y) for x, y in zip(fallen["log_odds"], fallen["expected_return"], strict=True)]
        worst = int(np.argmax(-np.diff(fallen["expected_return"])))
        _arrow(land, path[worst], path[worst + 1], styles[fallen["method"]][0], "one step")
    land.plot(numbers["summit_log_odds"], numbers["summit"], "^", color=GREEN, markersize=9)
    land.annotate("summit", (numbers["summit_log_odds"], numbers["summit"]), xytext=(8, 2), textcoords="offset points")
    land.plot(numbers["runs"][0]["log_odds"][0], numbers["runs"][0]["expected_return"][0], "o", color=BLACK)
    land.annotate(
        "start",
        (numbers["runs"][0]["log_odds"][0], numbers["runs"][0]["expected_return"][0]),
        xytext=(0, 9),
        textcoords="offset points",
        ha="center",
    )
    land.set_xlabel("log-odds of walking on towards the edge")
    land.set_ylabel("expected return η")
    land.set_title("the cliff: one number decides")
    curves.axhline(numbers["summit"], color=BLACK, linewidth=0.8, linestyle=":")
    curves.set_xlabel("update (exact: no sampling)")
    curves.set_title("learning curves")
    curves.legend(loc="lower right")
    if fell and fallen["slope_at_end"] < 1e-3:
        curves.annotate(
            "thrown back onto the plain: no slope left to climb by",
            (len(fallen["expected_return"]) - 1, fallen["final"]),
            xytext=(0, -14),
            textcoords="offset points",
            ha="right",
            color=styles[fallen["method"]][0],
        )


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, text: str) -> None:
    axes.annotate(
        "", end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.8, "linestyle": "--"}
    )
    axes.annotate(
        text,
        ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2),
        xytext=(6, 4),
        textcoords="offset points",
        color=colour,
    )


def _gae(figure: Figure, numbers: results.Gae) -> None:
    parts, critics = figure.subplots(1, 2)
    own = next(f for f in numbers["families"] if f["critic_error"] == numbers["critic_error"])
    figure.suptitle("λ trades the critic's bias for the return's variance", fontweight="bold")
    x = numbers["gae_lambda"]
    bias, variance = np.array(own["bias_squared"]), np.array(own["variance"])
    parts.plot(x, bias, color=ORANGE, linestyle="--", label="bias²")
    parts.plot(x, variance, color=BLUE, linestyle="-.", label="variance")
    parts.plot(x, bias + variance, color=BLACK, label="both: mean squared error")
    sampled = numbers["sampled"]
    at = [row["gae_lambda"] for row in sampled]
    parts.plot(at, [row["bias_squared"] for row in sampled], "s", color=ORANGE, markersize=5)
    parts.plot(at, [row["variance"] for row in sampled], "o", color=BLUE, markersize=5, label="squares, dots: sampled")
    least = own["error_at_best"] ** 2
    parts.plot(own["best_lambda"], least, "v", color=BLACK, markersize=8)
    parts.annotate(
        f"best λ = {own['best_lambda']:.2f}",
        (own["best_lambda"], least),
        xytext=(0, 10),
        textcoords="offset points",
        ha="center",
    )
    parts.set_ylim(-0.1 * least, 4.0 * least)
    parts.set_xlabel("λ")
    parts.set_ylabel("error of Â against the exact advantage, squared")
    parts.set_title(f"a critic that is off by {numbers['critic_error']:g}")
    parts.legend(loc="upper left")
    for family, colour, line in zip(
        numbers["families"], (GREEN, SKY, BLACK, PINK), ("-", "-.", "-", "--"), strict=False
    ):
        error = np.sqrt(np.array(family["bias_squared"]) + np.array(family["variance"]))
        critics.plot(x, error, color=colour, linestyle=line, label=f"critic off by {family['critic_error']:g}")
        critics.plot(family["best_lambda"], family["error_at_best"], "v", color=colour, markersize=8)
    critics.set_xlabel("λ")
    critics.set_ylabel("root mean squared error of Â")
    critics.set_title("the worse the critic, the larger the best λ (▼)")
    critics.legend(loc="upper left")


def _baseline(figure: Figure, numbers: results.Baseline) -> None:
    bars, offsets = figure.subplots(1, 2)
    figure.suptitle("A baseline changes the noise of the gradient, not the gradient", fontweight="bold")
    rows = numbers["estimators"][::-1]
    places = range(len(rows))
    bars.barh(places, [row["variance"] for row in rows], color=SKY, height=0.6)
    bars.plot([row["sampled"] for row in rows], places, "o", color=BLACK, label="sampled")
    bars.set_yticks(places, [row["baseline"] for row in rows])
    bars.set_xlabel("variance of one episode's gradient")
    bars.legend(loc="lower right")
    curves = numbers["offsets"]
    offsets.semilogy(curves["reward_offset"], curves["without"], color=ORANGE, label="none: REINFORCE")
    offsets.semilogy(curves["reward_offset"], curves["with_value"], color=BLUE, linestyle="--", label="b = V(s)")
    offsets.axvline(numbers["reward_offset"], color=BLACK, linewidth=0.8, linestyle=":")
    offsets.set_xlabel("constant added to every reward")
    offsets.set_ylim(0.5 * min(curves["with_value"]))
    offsets.set_title("the task stays the same; the noise need not")
    offsets.legend(loc="upper center")


def _penalty(figure: Figure, numbers: results.Penalty) -> None:
    left, right = figure.subplots(1, 2)
    figure.suptitle("Doubling and halving finds the price of the trust region", fontweight="bold")
    target = numbers["target_kl"]
    left.loglog(numbers["curve"]["kl_coef"], numbers["curve"]["kl"], color=BLUE, label="KL of the best step")
    left.axhspan(target / 1.5, 1.5 * target, color=GREEN, alpha=0.18, linewidth=0.0, label="δ/1.5 to 1.5δ: β stays")
    left.plot(numbers["price"], target, "o", color=BLACK)
    left.annotate(
        f"price {numbers['price']:.3g}", (numbers["price"], target), xytext=(8, 6), textcoords="offset points"
    )
    left.set_xlabel("β")
    left.set_ylabel("mean KL of an exact update")
    left.set_title("one β fits a KL of δ")
    left.legend(loc="lower left")
    for run, colour in zip(numbers["runs"], (BLUE, ORANGE, PINK, GREEN, SKY), strict=False):
        right.semilogy(run["kl_coef"], ".-", color=colour, label=f"from {run['start']:g}")
    right.axhline(numbers["price"], color=BLACK, linewidth=0.8, linestyle=":")
    right.xaxis.get_major_locator().set_params(integer=True)
    right.set_xlabel("update")
    right.set_title("β by the rule, and the price (dotted)")
    right.legend(loc="upper right")


def _percent(share: float) -> str:
    return f"{100.0 * share:.3g} %"


PICTURES: dict[str, Callable[..., None]] = {
    "baseline": _baseline,
    "bound": _bound,
    "surrogate": _surrogate,
    "clip": _clip,
    "step-size": _step_size,
    "penalty": _penalty,
    "gae": _gae,
}
