"""The result of a run and of an evaluation, in words."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from surefoot.runs.directory import ROOT, shell_path
from surefoot.training.reports.progress import as_return
from surefoot.training.reports.screen import fit


def describe_result(result: dict[str, Any], out: Any) -> str:
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
    missing = "" if find_spec("tensorboard") else '   (pip install "surefoot[tensorboard]")'
    to_copy = [f"run:     {where}", f"curves:  tensorboard --logdir {shell_path(_curves(where))}{missing}"]
    if result["next"]:
        to_copy.append(f"next:    {result['next']}")
    return "\n".join([fit("\n".join(lines), out), *to_copy])


def _engine(result: dict[str, Any]) -> str:
    mixed = result["acting"] != result["learning"]
    return f"acting {result['acting']}, learning {result['learning']}" if mixed else str(result["engine"])


def _target(result: dict[str, Any]) -> str:
    """Whether it is reached, by the final evaluation; a try that ended the run may have been luckier than that."""
    if result["target_reached"]:
        return "reached"
    tried = result["target_try"]
    if tried is None:
        return "NOT reached"
    found = as_return(tried["mean_return"], result["target_return"])
    return f"reached when tested ({found} over {tried['episodes']} episodes), NOT in the final evaluation on new ones"


def describe_evaluation(found: dict[str, Any]) -> str:
    """An evaluation's summary in two lines."""
    cut = f", {found['cut']} cut at the step budget" if found["cut"] else ""

    def show(name: str) -> str:
        return as_return(found[name], found["min_return"], found["max_return"])

    length = f"{found['mean_length']:.{0 if found['mean_length'] >= 10 else 1}f}"
    return (
        f"return {show('mean_return')} ± {show('std_return')} over {found['episodes']} episodes, "
        f"95 % interval of the mean {show('mean_return_low')} to {show('mean_return_high')}\n"
        f"median {show('median_return')}, IQM {show('iqm_return')}, "
        f"range {show('min_return')} to {show('max_return')}, "
        f"mean length {length} ({found['min_length']} to {found['max_length']}){cut}"
    )


def _curves(where: str) -> str:
    """The folder for TensorBoard: that of all runs, where this one is among them, so that they can be compared."""
    run, root = Path(where).absolute(), ROOT.absolute()
    return str(ROOT) if root in run.parents else f"{where}/tensorboard"
