"""Describes the result of a run or an evaluation in words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypedDict

from surefoot.analysis.watch import first_cause
from surefoot.drawing import can_draw, missing_for_page
from surefoot.runs.directory import ROOT, shell_path
from surefoot.text import counted
from surefoot.training.build.engines import EngineNames
from surefoot.training.reports.progress import as_return
from surefoot.training.reports.screen import fit

if TYPE_CHECKING:
    from surefoot.analysis.watch import Warned
    from surefoot.training.evaluation.result import Summary
    from surefoot.training.loop.target import Tried


class Best(TypedDict):
    step: int
    selection_return: float


class Result(EngineNames):
    """What `--json` prints and `result.json` holds."""

    run_dir: str
    algo: str
    env: str
    seed: int
    preset: str | None
    total_steps: int
    updates: int
    episodes: int
    seconds: float
    steps_per_second: float
    time_split: dict[str, float]
    train_return: float | None
    stopped: str | None
    target_return: float | None
    target_reached: bool | None
    target_try: Tried | None
    warnings: list[Warned]
    best: Best | None
    eval: Summary | None
    resume: str | None
    next: str | None


def describe_result(result: Result, out: TextIO) -> str:
    """How the run went and where everything is, fitted to the terminal of `out`; commands and paths stay whole."""
    where = result["run_dir"]
    lines = [
        f"\ntrained {result['total_steps']:,} steps in {result['seconds']:.1f} s "
        f"({result['steps_per_second']:,.0f} steps/s, {_engine(result)})"
    ]
    if result["stopped"]:
        lines.append(f"stopped early: {result['stopped']}")
    if result["target_return"] is not None and not result["resume"]:
        lines.append(f"target return {result['target_return']:g}: {_target(result)}")
    if result["eval"]:
        lines.append(f"greedy {describe_evaluation(result['eval'])}")
    if result["best"]:
        step, found = result["best"]["step"], result["best"]["selection_return"]
        lines.append(f"best by evaluation during training: step {step:,} ({as_return(found)}); --checkpoint best")
    if (cause := first_cause(result["warnings"])) is not None:
        lines.append(f"diagnosis: {cause['message']}")
    to_copy = [f"run:     {where}", f"curves:  {_plot(where)}", f"browser: {_page(where)}"]
    if result["next"]:
        to_copy.append(f"next:    {result['next']}")
    return "\n".join([fit("\n".join(lines), out), *to_copy])


def _engine(result: Result) -> str:
    mixed = result["acting"] != result["learning"]
    return f"acting {result['acting']}, learning {result['learning']}" if mixed else str(result["engine"])


def _target(result: Result) -> str:
    """Whether the final evaluation reached the target; the attempt that ended the run may have been luckier."""
    if result["target_reached"]:
        return "reached"
    tried = result["target_try"]
    if tried is None:
        return "NOT reached"
    wanted = result["target_return"]
    found = as_return(tried["mean_return"], *([] if wanted is None else [wanted]))
    tested = f"reached when tested ({found} over {counted(tried['episodes'], 'episode')})"
    return f"{tested}, NOT in the final evaluation on new ones"


def describe_evaluation(found: Summary) -> str:
    """An evaluation's summary in two lines, or in one."""
    cut = f", {found['cut']} cut at the step budget" if found["cut"] else ""

    def show(value: float) -> str:
        return as_return(value, found["min_return"], found["max_return"])

    if found["episodes"] == 1:
        return f"return {show(found['mean_return'])} in 1 episode of {counted(found['min_length'], 'step')}{cut}"
    length = f"{found['mean_length']:.{0 if found['mean_length'] >= 10 else 1}f}"
    return (
        f"return {show(found['mean_return'])} ± {show(found['std_return'])} over {found['episodes']} episodes, "
        f"95 % interval of the mean {show(found['mean_return_low'])} to {show(found['mean_return_high'])}\n"
        f"median {show(found['median_return'])}, IQM {show(found['iqm_return'])}, "
        f"range {show(found['min_return'])} to {show(found['max_return'])}, "
        f"mean length {length} ({found['min_length']} to {found['max_length']}){cut}"
    )


def _plot(where: str) -> str:
    """The command that draws the run: a picture, or in the terminal where matplotlib is missing."""
    return f"surefoot plot {shell_path(where)}{'' if can_draw() else ' --terminal'}"


def _page(where: str) -> str:
    """The command that shows the run in the browser, among all runs if it is one of them."""
    run, root = Path(where).absolute(), ROOT.absolute()
    folder = "" if root in run.parents else f" --runs {shell_path(where)}"
    install = 'pip install "surefoot[ui]" && ' if missing_for_page() else ""
    return f"{install}surefoot ui{folder}"
