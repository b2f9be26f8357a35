"""`surefoot theory STUDY`: the lecture's plots, computed exactly."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.cli.flags import Parser, add_json, add_settings
from surefoot.drawing import can_draw, check_picture
from surefoot.errors import UsageError, did_you_mean
from surefoot.settings import Settings, options
from surefoot.text import print
from surefoot.theory.config import (
    BaselineConfig,
    BoundConfig,
    ClipConfig,
    GaeConfig,
    PenaltyConfig,
    StepSizeConfig,
    SurrogateConfig,
)
from surefoot.training.reports.screen import fit

if TYPE_CHECKING:
    from argparse import Namespace

    from surefoot.theory import results

STUDIES: dict[str, tuple[type[Settings], str]] = {
    "bound": (BoundConfig, "the return, the surrogate and the lower bound along a direction"),
    "surrogate": (SurrogateConfig, "how the surrogate touches the true return in value and slope"),
    "clip": (ClipConfig, "PPO's clipped objective against the ratio, with its gradient"),
    "step-size": (StepSizeConfig, "step sizes that fall off the cliff, and methods that do not"),
    "penalty": (PenaltyConfig, "PPO-penalty's β finding the price of a trust region"),
    "baseline": (BaselineConfig, "variance of the policy gradient with and without a baseline"),
    "gae": (GaeConfig, "bias and variance of GAE against λ"),
}
ELSEWHERE = {
    "epsilon": "clip-ratio",
    "eps": "clip-ratio",
    "delta": "max-kl",
    "lr": "learning-rates",
    "beta": "kl-coefs",
}

HELP = """surefoot theory STUDY: the lecture's formulas from the trust region to the
clip, computed exactly on small MDPs

  surefoot theory bound --world random --gamma 0.9
  surefoot theory step-size --learning-rates 0.03 0.1 3 --out cliff.svg

studies:
{studies}

`surefoot theory STUDY --help` shows the flags of a study.
"""


def run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(HELP.format(studies="\n".join(f"  {name:<10} {line}" for name, (_, line) in STUDIES.items())), end="")
        return 0
    study, *rest = words
    if study not in STUDIES:
        raise UsageError(f"unknown study '{study}'{did_you_mean(study, STUDIES)} (one of {', '.join(STUDIES)})")
    config_type, line = STUDIES[study]
    arguments = vars(_parser(study, config_type, line).parse_args(rest))
    wanted, as_json = arguments.pop("out"), arguments.pop("json")
    config, picture = config_type(**arguments), _picture(study, wanted)

    from surefoot.theory import studies

    numbers = getattr(studies, study.replace("-", "_"))(config)
    out = sys.stderr if as_json else sys.stdout
    print(fit("\n".join(DESCRIBE[study](numbers)), out), file=out)
    if picture is not None:
        from surefoot.theory.plots import draw

        draw(study, numbers, picture)
        print(f"\npicture: {picture}", file=out)
    elif wanted is None:
        print('\nno picture without matplotlib: pip install "surefoot[plots]"', file=out)
    if as_json:
        print(json.dumps({"study": study, **config.as_dict(), **numbers, "picture": picture and str(picture)}))
    return 0


def _parser(study: str, config_type: type[Settings], line: str) -> Parser:
    def explain_unknown(flag: str, value: str | None, typed: Namespace) -> str | None:
        name = flag.removeprefix("--")
        others = [other for other, (kind, _) in STUDIES.items() if name.replace("-", "_") in _names(kind)]
        if name in ELSEWHERE and ELSEWHERE[name].replace("-", "_") in _names(config_type):
            return f"unknown flag {flag}; here it is --{ELSEWHERE[name]}"
        return f"{flag} is not a setting of {study}; it belongs to {', '.join(others)}" if others else None

    parser = Parser(
        explain_unknown=explain_unknown, prog=f"surefoot theory {study}", description=f"{line[0].upper()}{line[1:]}."
    )
    parser.add_argument(
        "--out", metavar="FILE", help=f"file for the plot (.png, .svg or .pdf), or none [theory-{study}.png]"
    )
    add_json(parser)
    add_settings(parser, options(config_type))
    return parser


def first_words() -> dict[str, str]:
    """What may follow `surefoot theory`."""
    return {study: line for study, (_, line) in STUDIES.items()}


def _names(config_type: type[Settings]) -> list[str]:
    return [option.name for option in options(config_type)]


def _picture(study: str, wanted: str | None) -> Path | None:
    """The file to plot to; None if no plot is wanted, or if it is not possible and was not requested."""
    if wanted == "none":
        return None
    if wanted is None:
        return Path(f"theory-{study}.png") if can_draw() else None
    return check_picture("--out", wanted, "or none")


def _baseline(numbers: results.Baseline) -> Iterator[str]:
    yield (
        f"‖∇η‖ = {numbers['gradient_norm']:.4g}   γ = {numbers['gamma']:g}   "
        f"{numbers['reward_offset']:g} added to every reward"
    )
    yield ""
    yield f"{'baseline b':<34}{'variance':>12}{'sampled':>12}{'bias':>10}{'episodes':>11}"
    for row in numbers["estimators"]:
        yield (
            f"{row['baseline']:<34}{row['variance']:>12.4g}{row['sampled']:>12.4g}{row['bias']:>10.1g}"
            f"{row['episodes']:>11.4g}"
        )
    yield ""
    yield "bias: of the exact mean, against ∇η. episodes: to average until noise and gradient are equally large"


def _penalty(numbers: results.Penalty) -> Iterator[str]:
    yield (
        f"price of δ = {numbers['target_kl']:g}: β = {numbers['price']:.5g}   "
        f"(for small steps √(E Var A / 2δ) = {numbers['small_step_price']:.5g})"
    )
    yield ""
    yield f"{'first β':>10}{'found after':>14}{'last β':>12}{'KL':>12}   in the end"
    for run in numbers["runs"]:
        found = "never" if run["found_after"] is None else f"{run['found_after']} updates"
        ending = "stays" if run["settled"] else "alternates" if run["alternates"] else "still on its way"
        yield f"{run['start']:>10g}{found:>14}{run['kl_coef'][-1]:>12.4g}{run['kl'][-1]:>12.4g}   {ending}"
    yield ""
    yield "found: within a factor of two of the price. Doubling β divides a small KL by 4, and the band in"
    yield "which β stays is a factor of 2.25 wide, so some β jump over it from side to side"


def _bound(numbers: results.Bound) -> Iterator[str]:
    yield f"η(π) = {numbers['old_return']:.6g}   γ = {numbers['gamma']:g}"
    yield f"ε = max|A| = {numbers['max_advantage']:.4g}   C = 4εγ/(1−γ)² = {numbers['constant']:.4g}"
    yield ""
    yield f"{'along the natural gradient':<34}{'step t':>12}{'gain of η':>14}{'guaranteed':>14}"
    yield (
        f"{'best step by the bound':<34}{numbers['sure_step']:>12.4g}{numbers['gain_there']:>14.4g}"
        f"{numbers['sure_gain']:>14.4g}"
    )
    yield f"{'end of the trusted region':<34}{numbers['trusted']:>12.4g}"
    yield f"{'actual best step':<34}{numbers['best_step']:>12.4g}{numbers['true_gain']:>14.4g}"
    distance = numbers["max_kl_of_best_table"]
    yield (
        f"best table by the bound: D_KL^max = {'∞' if distance is None else f'{distance:.3g}'}, "
        f"gain of η {numbers['gain_of_best_table']:.4g}"
    )
    yield ""
    yield f"{'γ':>6}{'C':>12}{'possible gain':>16}{'guaranteed':>14}{'share':>12}"
    for row in numbers["by_gamma"]:
        yield (
            f"{row['gamma']:>6g}{row['constant']:>12.4g}{row['true_gain']:>16.4g}{row['sure_gain']:>14.4g}"
            f"{100.0 * row['share']:>10.3g} %"
        )


def _surrogate(numbers: results.Surrogate) -> Iterator[str]:
    yield f"η(π) = {numbers['old_return']:.6g}   γ = {numbers['gamma']:g}"
    yield f"|L(π) − η(π)|            {numbers['value_difference']:.2g}"
    yield (
        f"max |∇L − ∇η| at π       {numbers['gradient_difference']:.2g}   "
        f"(‖∇η‖ = {numbers['gradient_norm']:.4g}, by differences of η)"
    )
    if numbers["order"] is None:
        yield "L equals η along this direction: nothing to measure"
        return
    yield f"order of |η − L| in t    {numbers['order']:.3f}   (2: value and slope agree)"
    yield f"C·D_KL^max / |η − L|     {numbers['price_over_gap']:.4g}   (median: how loose the bound is)"


def _clip(numbers: results.Clip) -> Iterator[str]:
    epsilon, escape = numbers["clip_ratio"], numbers["escape"]
    ratio = numbers["ratio"]
    yield f"{'ratio':>8}{'A = +1':>12}{'slope':>8}{'A = −1':>12}{'slope':>8}"
    for wanted in (0.5, 1.0 - epsilon, 1.0, 1.0 + epsilon, 1.5):
        i = min(range(len(ratio)), key=lambda k: abs(ratio[k] - wanted))
        cells = [
            own[i] for side in (numbers["positive"], numbers["negative"]) for own in (side["objective"], side["slope"])
        ]
        yield f"{ratio[i]:>8.3f}{cells[0]:>12.3f}{cells[1]:>8.0f}{cells[2]:>12.3f}{cells[3]:>8.0f}"
    yield ""
    yield (
        f"however, one exact PPO update on the cliff ({escape['epochs']} epochs of Adam, "
        f"learning rate {escape['learning_rate']:g})"
    )
    yield f"reaches a ratio of {escape['max_ratio']:.3g} and D_KL^max = {escape['max_kl']:.3g}:"
    yield "the clip removes the incentive to leave 1±ε, not the possibility"


def _step_size(numbers: results.StepSize) -> Iterator[str]:
    yield (
        f"summit: η = {numbers['summit']:.4g} at log-odds {numbers['summit_log_odds']:.3g}; "
        f"below the edge: {numbers['bottom']:.4g}"
    )
    yield ""
    yield f"{'method':<20}{'final η':>10}{'best η':>10}{'worst drop':>13}{'slope at the end':>19}"
    for run in numbers["runs"]:
        yield (
            f"{run['method']:<20}{run['final']:>10.4g}{run['best']:>10.4g}{run['worst_drop']:>13.4g}"
            f"{run['slope_at_end']:>19.2g}"
        )


def _gae(numbers: results.Gae) -> Iterator[str]:
    own = next(f for f in numbers["families"] if f["critic_error"] == numbers["critic_error"])
    yield f"a critic off by {numbers['critic_error']:g}; Â against the exact advantage"
    yield f"{'λ':>6}{'bias²':>12}{'sampled':>12}{'variance':>12}{'sampled':>12}"
    grid = numbers["gae_lambda"]
    for row in numbers["sampled"]:
        i = min(range(len(grid)), key=lambda k: abs(grid[k] - row["gae_lambda"]))
        yield (
            f"{grid[i]:>6.3g}{own['bias_squared'][i]:>12.4f}{row['bias_squared']:>12.4f}"
            f"{own['variance'][i]:>12.4f}{row['variance']:>12.4f}"
        )
    yield ""
    for family in numbers["families"]:
        yield (
            f"critic off by {family['critic_error']:<5g} best λ = {family['best_lambda']:.3g}, "
            f"root mean squared error {family['error_at_best']:.4g}"
        )


DESCRIBE: dict[str, Callable[..., Iterator[str]]] = {
    "baseline": _baseline,
    "bound": _bound,
    "surrogate": _surrogate,
    "clip": _clip,
    "step-size": _step_size,
    "penalty": _penalty,
    "gae": _gae,
}
