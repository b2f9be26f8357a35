"""`surefoot.replay`: one update of a run, rebuilt from the nearest checkpoint before it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot import notebook
from surefoot.errors import NonFiniteError, UsageError
from surefoot.runs import Run
from surefoot.runs.files import write_errors_told
from surefoot.timetravel.capture import Capture, Update
from surefoot.timetravel.journey import Journey, Span

if TYPE_CHECKING:
    from surefoot.training.life.trust import Trust
    from surefoot.types import MetricsRow

REASONS = (
    "a callback that was passed in Python (it is not recorded)",
    "an env that draws from generators other than its own",
    "an env or a config.toml that has changed since",
)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Replay(Update):
    """One update of a run, rebuilt: its inputs, gradients and results, and whether it matches what was logged."""

    run: Run
    row: MetricsRow | None  # the row of metrics that it is part of (`log_every` steps), as computed now
    logged: MetricsRow | None  # the same as the run logged it; None: the run was cut off before it
    differences: dict[str, tuple[float | None, float | None]]  # columns in which the two differ: (logged, now)
    parted: int | None  # the first row on the way here that is not as logged, by its update
    error: str | None  # why the update was rejected, if it was
    start: str  # where the replay began
    notes: tuple[str, ...]  # what differs from the original run

    @property
    def exact(self) -> bool | None:
        """Whether the row is the one that the run logged; None: there is none to compare it with."""
        return None if self.logged is None else self.row is not None and not self.differences

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the replay may differ from the run: known differences, or otherwise the possible ones."""
        return () if self.exact is not False else self.notes or REASONS

    def __repr__(self) -> str:
        return f"Replay({', '.join(f'{name} {value}' for name, value in self.facts().items())})"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return notebook.table(f"an update of {self.run.path}", self.facts())

    def facts(self) -> dict[str, str]:
        """The key facts."""
        length, envs = self.rollout.reward.shape
        exact = {True: "as logged", False: "not as logged", None: "none was logged"}[self.exact]
        return {
            "update": f"{self.update:,}",
            "step": f"{self.step:,}",
            "rollout": f"{length} × {envs}",
            "minibatches": f"{len(self.gradients.norms)}",
            **({"kl": f"{self.metrics['kl']:.3g}"} if "kl" in self.metrics else {}),
            **({"error": self.error} if self.error is not None else {"row": exact}),
        }

    def save(self, path: str | Path) -> Path:
        """Write `arrays()` to a file, `.npz` or `.safetensors`."""
        target = check_target(path)
        arrays = {name: tensor.contiguous().clone() for name, tensor in self.arrays().items()}
        with write_errors_told(target):
            if target.suffix == ".npz":
                import numpy as np

                with open(target, "wb") as file:
                    numbers = {name: tensor.numpy() for name, tensor in arrays.items()}
                    np.savez_compressed(file, **numbers)  # type: ignore[arg-type]  # it takes a flag beside them
            else:
                import safetensors.torch

                target.write_bytes(safetensors.torch.save(arrays))
        return target


def check_target(path: str | Path) -> Path:
    """The file to write arrays to, checked beforehand: its format and its folder."""
    target = Path(path)
    if target.suffix not in (".npz", ".safetensors"):
        raise UsageError(f"cannot tell the format of {str(path)!r}; end the name in .npz or .safetensors")
    if not target.absolute().parent.is_dir():
        raise UsageError(f"cannot write {target}: there is no folder {target.absolute().parent}")
    return target


def replay(
    run: Run | str | Path,
    update: int | None = None,
    *,
    step: int | None = None,
    strict: bool = False,
    trust: Trust = False,
    progress: bool = False,
) -> Replay:
    """Rebuild one update of a run: its rollout, batch, weights and gradients. Writes nothing to the run's directory.

    `update`: as in the rows of metrics, from 1 on; or `step`: the update whose rollout contains this env step.
    `strict`: a damaged checkpoint is an error, even if an older one could be used. `trust`: the run's own modules and
    files may be executed. `progress`: say on stderr where the replay starts.
    """
    found = run if isinstance(run, Run) else Run(run)
    if (update is None) == (step is None):
        raise UsageError("say which update to replay: its number (update), or an env step of its rollout (step)")
    span = Span(update, update) if update is not None else Span(int(step or 0), int(step or 0), "step")
    capture = Capture()
    journey = Journey(found, span, capture, progress=progress)
    error = None
    try:
        journey.travel(trust, strict=strict)
    except NonFiniteError as rejected:  # a rejected update is worth a look, too
        if capture.seen is None:
            raise
        error = str(rejected)
    return _replay(journey, capture.with_gradients(), error)


def _replay(journey: Journey, seen: Update, error: str | None) -> Replay:
    number = journey.history.row_of(seen.update)
    compared = sorted(set(journey.rows) & set(journey.history.rows))
    return Replay(
        **{field.name: getattr(seen, field.name) for field in fields(Update)},
        run=journey.run,
        row=journey.rows.get(number) if number is not None else None,
        logged=journey.history.rows.get(number) if number is not None else None,
        differences=journey.row_differences(number) if number is not None else {},
        parted=next((update for update in compared if journey.row_differences(update)), None),
        error=error,
        start=journey.start,
        notes=tuple(journey.notes),
    )
