"""The trials of a tune in Optuna's journal. The only file that speaks to Optuna."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from surefoot.errors import CheckpointError, UsageError
from surefoot.ranges import Between
from surefoot.sweep.plan import as_text
from surefoot.tuning.space import Dimension, Position, Space, decode

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

STUDY = "tune"
STARTUP = 15  # trials before the sampler learns from them; until then they are random
TOP = 0.25  # the share of the trials that importances ask about: what set them apart from the others?
FEWEST = 12  # trials below which an importance would be chance
State = Literal["open", "dropped", "complete", "failed"]


@dataclass(frozen=True)
class Trial:
    """Settings that were tried, and how they did."""

    number: int
    values: Mapping[str, object]
    state: State
    round: int
    origin: str  # "default", "preset" or "sampler"
    scores: Mapping[int, Sequence[float]] = field(default_factory=dict)  # by rung: a return per seed
    seconds_per_step: float | None = None


def require_optuna() -> None:
    found = find_spec("optuna")
    if found is None or found.origin is None:  # a folder of that name is no package
        raise UsageError('surefoot tune needs Optuna, which is not installed: pip install "surefoot[tune]"')


class Journal:
    """Optuna's study of a tune. Every change is on disk when a method returns."""

    def __init__(self, file: Path, space: Space, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._file, self._space, self._seed = file, space, seed
        self._distributions = {name: _distribution(one) for name, one in space.items()}
        repair(file)
        with self._damage():
            storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(file)))
            self._study: Study = optuna.create_study(
                storage=storage, study_name=STUDY, direction="maximize", load_if_exists=True
            )
            for trial in self._frozen("RUNNING"):
                if "round" not in trial.user_attrs:  # killed while it was drawn
                    self._study.tell(trial.number, state=optuna.trial.TrialState.FAIL)

    def trials(self) -> list[Trial]:
        """All trials by number."""
        with self._damage():
            return [self._trial(one) for one in self._study.get_trials(deepcopy=False) if "round" in one.user_attrs]

    def ask(self, round: int, origin: str = "sampler", positions: Mapping[str, Position] | None = None) -> Trial:
        """A new trial: at these positions, or where the sampler proposes it.

        The sampler gets a seed for each trial, so that a tune that was killed draws the trials of one that was not.
        """
        import optuna

        with self._damage():
            number = len(self._study.get_trials(deepcopy=False))
            digest = sha256(f"{self._seed}/{number}".encode()).digest()
            self._study.sampler = optuna.samplers.TPESampler(
                seed=int.from_bytes(digest[:4]), multivariate=True, constant_liar=True, n_startup_trials=STARTUP
            )
            if positions is not None:
                self._study.enqueue_trial(dict(positions))
            trial = self._study.ask(fixed_distributions=self._distributions)
            trial.set_user_attr("origin", origin)
            trial.set_user_attr("round", round)
            return self._find(trial.number)

    def report(self, number: int, rung: int, scores: Sequence[float], value: float, seconds_per_step: float) -> None:
        """The result of a rung; `value` is what the sampler and the ranking go by."""
        import optuna

        with self._damage():
            frozen = self._study.get_trials(deepcopy=False)[number]
            if frozen.state.is_finished() or rung in frozen.intermediate_values:
                return
            trial = optuna.trial.Trial(self._study, frozen._trial_id)
            trial.set_user_attr(f"scores {rung}", list(scores))
            trial.set_user_attr("seconds per step", seconds_per_step)
            trial.report(value, rung)

    def close(self, number: int, state: State, value: float | None = None, why: str = "") -> None:
        """Nothing more is done for this trial. A failed one counts as pruned, so that the sampler avoids its like."""
        import optuna

        with self._damage():
            frozen = self._study.get_trials(deepcopy=False)[number]
            if frozen.state.is_finished():
                return
            if state == "failed":
                optuna.trial.Trial(self._study, frozen._trial_id).set_user_attr("error", why)
            if state == "complete":
                self._study.tell(number, value)
            else:
                self._study.tell(number, state=optuna.trial.TrialState.PRUNED)

    def importances(self, values: Mapping[int, float]) -> dict[str, float]:
        """The share of each setting in what set the best quarter of these trials apart; empty: too few to tell."""
        import optuna

        if len(values) < FEWEST or len(set(values.values())) < 2:
            return {}
        with self._damage():
            study = optuna.create_study(direction="maximize")
            frozen = self._study.get_trials(deepcopy=False)
            for number, value in values.items():
                params = frozen[number].params
                study.add_trial(
                    optuna.trial.create_trial(params=params, distributions=self._distributions, value=value)
                )
            evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=TOP)
            found = optuna.importance.get_param_importances(study, evaluator=evaluator)
            return {str(name): float(share) for name, share in found.items()}

    def _frozen(self, state: str) -> list[FrozenTrial]:
        return [trial for trial in self._study.get_trials(deepcopy=False) if trial.state.name == state]

    def _find(self, number: int) -> Trial:
        return self._trial(self._study.get_trials(deepcopy=False)[number])

    def _trial(self, frozen: FrozenTrial) -> Trial:
        said = frozen.user_attrs
        states: dict[str, State] = {"COMPLETE": "complete", "PRUNED": "dropped", "FAIL": "failed"}
        state = "failed" if "error" in said else states.get(frozen.state.name, "open")
        rungs = [name for name in said if name.startswith("scores ")]
        scores = {int(name.split()[1]): [float(score) for score in said[name]] for name in rungs}
        speed = said.get("seconds per step")
        values = decode(self._space, frozen.params)
        return Trial(
            frozen.number,
            values,
            state,
            int(said["round"]),
            str(said["origin"]),
            scores,
            None if speed is None else float(speed),
        )

    @contextmanager
    def _damage(self) -> Iterator[None]:
        """A journal that was edited or damaged is our error, whatever Optuna makes of it."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AssertionError, IndexError, AttributeError, StopIteration) as error:
            raise CheckpointError(
                f"{self._file} is damaged ({error!r}); begin anew in another folder (--out)"
            ) from error


def repair(file: Path) -> None:
    """What a kill or a full disk leaves: half of a last line, after which Optuna reads nothing, and its lock.

    The folder is held by this process, so the lock belongs to no one.
    """
    with suppress(FileNotFoundError):
        os.unlink(f"{file}.lock")
    if file.is_file():
        data = file.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(file, whole)


def _distribution(dimension: Dimension) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found = dimension.range
    if isinstance(found, Between):
        if dimension.whole:
            return IntDistribution(int(found.low), int(found.high), log=found.log)
        return FloatDistribution(found.low, found.high, log=found.log)
    if dimension.ordered:
        return IntDistribution(0, len(found.values) - 1)
    return CategoricalDistribution([as_text(value) for value in found.values])
