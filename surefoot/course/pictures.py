"""Pictures for notebooks: learning curves over seeds, and the studies of the theory lab."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from surefoot.analysis.bounds import UNBOUNDED, Bounds, bounds_of, hull
from surefoot.analysis.curves import Curve, band
from surefoot.analysis.logs import Log
from surefoot.analysis.pictures import curves_figure
from surefoot.analysis.plotting import LINES, Line, Panel, Plot
from surefoot.drawing import look
from surefoot.errors import UsageError, did_you_mean
from surefoot.runs import Run
from surefoot.settings import Settings
from surefoot.theory import config, studies
from surefoot.theory.plots import draw

STUDIES: dict[str, tuple[type[Settings], Callable[..., Mapping[str, object]]]] = {
    "bound": (config.BoundConfig, studies.bound),
    "surrogate": (config.SurrogateConfig, studies.surrogate),
    "clip": (config.ClipConfig, studies.clip),
    "step-size": (config.StepSizeConfig, studies.step_size),
    "penalty": (config.PenaltyConfig, studies.penalty),
    "baseline": (config.BaselineConfig, studies.baseline),
    "gae": (config.GaeConfig, studies.gae),
}


class Picture:
    """A PNG that a notebook shows."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def _repr_png_(self) -> bytes:
        return self.content


def curves(groups: Mapping[str, Sequence[Run | Curve]], metric: str = "episode_return", title: str = "") -> Picture:
    """The middle and the spread of each group of runs, a line each. A `Curve` is a run that you logged yourself."""
    lines = []
    for index, (name, members) in enumerate(groups.items()):
        found = [member if isinstance(member, Curve) else Log(member).curve(metric) for member in members]
        bounds = hull([_bounds(member, metric) for member in members])
        lines.append(Line(name, index, band(found, LINES["iqm"], bounds=bounds)))
    plot = Plot(metric, "steps", (Panel(title, tuple(lines)),), "iqm")
    buffer = BytesIO()
    with look():
        curves_figure(plot).savefig(buffer, dpi=100, format="png")
    return Picture(buffer.getvalue())


def _bounds(member: Run | Curve, metric: str) -> Bounds:
    """No interval of a return may leave what the env can pay."""
    if isinstance(member, Curve):
        return UNBOUNDED
    return bounds_of(metric, str(member.config["env"]), {"max_episode_steps": str(member.config["max_episode_steps"])})


def lab(study: str, **settings: object) -> Picture:
    """A picture of the theory lab, as `surefoot theory STUDY` draws it; the settings are its flags."""
    if study not in STUDIES:
        raise UsageError(f"unknown study '{study}'{did_you_mean(study, STUDIES)} (one of {', '.join(STUDIES)})")
    config_type, compute = STUDIES[study]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "picture.png"
        draw(study, compute(config_type(**settings)), file)
        return Picture(file.read_bytes())
