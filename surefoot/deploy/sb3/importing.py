"""Makes a run of a saved model: as if it had been trained here up to its last step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from gymnasium import spaces

from surefoot.deploy.sb3.archive import read_model
from surefoot.deploy.sb3.hyperparameters import Hyperparameters, read_hyperparameters
from surefoot.deploy.sb3.networks import Translated, Translator
from surefoot.deploy.sb3.spaces import read_space, require_same
from surefoot.deploy.sb3.stand_in import MaskedStandIn, StandIn
from surefoot.deploy.sb3.statistics import Statistics, read_statistics
from surefoot.envs.backends import backend_of
from surefoot.envs.config import EnvConfig
from surefoot.errors import CheckpointError, CodeError, SurefootError, UsageError
from surefoot.policies.config import PolicyConfig
from surefoot.runs import RunDirectory
from surefoot.runs.zips import NO_ZIP
from surefoot.schema import Misfit
from surefoot.spaces.layout import Layout
from surefoot.training.build.parts import initial_policy
from surefoot.training.callbacks import Callback
from surefoot.training.config.lost_env import UNKNOWN_ENV
from surefoot.training.config.resolve import resolve
from surefoot.training.evaluation.described import no_larger_than, weights_shape
from surefoot.training.evaluation.facts import WRONG_CONTENT
from surefoot.training.life.launch import train_config

if TYPE_CHECKING:
    from surefoot.deploy.sb3.archive import SavedModel
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.training.config.resolve import TrainConfig
    from surefoot.training.trainer import Trainer
    from surefoot.types import GymSpace

LARGEST_CRITIC = 2**22  # parameters of a critic that is not in the file
AFRESH = "not taken over: the optimizer's state, the open episodes and the random generators; they start afresh"
NO_ENV = "the file does not name its env; give --env ID to evaluate, film and train on it from the command line"
HOW_TO_WRITE = "; docs/import.md has the lines that turn VecNormalize's pickle into such a file"
NO_STATISTICS = "if it was trained with VecNormalize, its statistics are in another file: give --normalizer"


@dataclass(frozen=True)
class Imported:
    run: RunDirectory
    algo: str
    steps: int
    notes: tuple[str, ...]  # what could not be taken over


def import_model(
    file: Path,
    *,
    normalizer: Path | None = None,
    env: str | None = None,
    env_settings: Mapping[str, object] | None = None,
    run_dir: str | Path | None = None,
) -> Imported:
    """Read the zip `file` and write it as a run. Nothing in the file is executed, and a run is written only at the end.

    `env`: the env it was trained in. `normalizer`: VecNormalize's statistics as an .npz file.
    """
    given = dict(env_settings or {})
    if given and env is None:
        raise UsageError(f"{next(iter(given))} has no effect without --env; name the env")
    try:
        model = read_model(file)
        known = read_hyperparameters(model)
        theirs = _their_spaces(model, bounds=env is None)
        if known.kind == "maskable" and isinstance(theirs[1], spaces.MultiBinary):
            raise UsageError("it masks MultiBinary actions, which have no masks here")
        ours = theirs if env is None else backend_of(env).spaces(EnvConfig(env=env, **given))  # type: ignore[arg-type]
        require_same(theirs[0], ours[0], "observation space")
        require_same(theirs[1], ours[1], "action space")
        layout = Layout(ours[0])
        found = Translator(model, known, theirs[0], layout, ours[1]).translate()
        statistics = None if normalizer is None else _statistics(normalizer, layout)
        found.settings["normalize_observations"] = statistics is not None
        found.notes += () if statistics is None else statistics.notes
        arrival = Arrival(f"{file} (Stable-Baselines3 {model.version})", found, statistics, known.steps)
        arrival.try_on(*ours)
        scaled = {"normalize_rewards": True} if statistics is not None and statistics.returns is not None else {}
        config = _config(known, found, env, scaled | given)
    except UsageError as error:
        raise UsageError(f"{file} cannot be imported: {error}") from None
    except (*NO_ZIP, *WRONG_CONTENT) as error:
        said = error if isinstance(error, NO_ZIP) else repr(error)
        raise CheckpointError(f"{file} is not a model that Stable-Baselines3 saved: {said}") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}") from None
    unknown = partial(MaskedStandIn if known.kind == "maskable" else StandIn, *ours)
    made = unknown if env is None else env
    new = run_dir is None or not os.path.lexists(run_dir)
    try:
        result = train_config(config, env=made, run_dir=run_dir, callbacks=[arrival], progress=False, evaluate=False)
    except CodeError:  # an error of the env's own code, which the run's crash report describes
        raise
    except SurefootError as error:
        if not new or arrival.run is None:
            raise
        shutil.rmtree(arrival.run.path, ignore_errors=True)
        raise SurefootError(f"{file} was not imported, and nothing is left of the attempt: {error}") from None
    normalized = statistics is not None or not any(leaf.kind == "vector" for leaf in layout.leaves)
    notes = _notes(known, found, normalized=normalized, named=env is not None)
    return Imported(RunDirectory(Path(result["run_dir"])), known.algo, known.steps, tuple(notes))


def _their_spaces(model: SavedModel, *, bounds: bool) -> tuple[GymSpace, GymSpace]:
    """(observation, action) space. `bounds`: those of the observations are needed."""
    actions = read_space(model.data.get("action_space"), "action_space")
    if isinstance(actions, spaces.Dict):
        raise UsageError("its actions have several parts")
    return read_space(model.data.get("observation_space"), "observation_space", bounds=bounds), actions


def _statistics(file: Path, layout: Layout) -> Statistics:
    try:
        return read_statistics(file, layout)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None
    except (*NO_ZIP, Misfit) as error:
        raise CheckpointError(f"{file} does not hold VecNormalize's statistics: {error}{HOW_TO_WRITE}") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}") from None


def _config(known: Hyperparameters, found: Translated, env: str | None, given: Mapping[str, object]) -> TrainConfig:
    rollout = known.settings.get("rollout_length", 1), known.settings["num_envs"]
    assert all(isinstance(number, int) for number in rollout)
    steps = max(known.steps, rollout[0] * rollout[1])  # type: ignore[operator]
    settings = {**known.settings, **found.settings, **given, "total_steps": steps}
    return resolve(env or UNKNOWN_ENV, known.algo, None, None, settings)


def _notes(known: Hyperparameters, found: Translated, *, normalized: bool, named: bool) -> list[str]:
    notes = [*known.notes, *found.notes, AFRESH]
    return notes + ([] if normalized else [NO_STATISTICS]) + ([] if named else [NO_ENV])


class Arrival(Callback):
    """Gives a new run the weights and the step of the model, and ends it there."""

    def __init__(self, source: str, found: Translated, statistics: Statistics | None, steps: int) -> None:
        self.source, self.found, self.statistics, self.steps = source, found, statistics, steps
        self.run: RunDirectory | None = None

    def try_on(self, observations: GymSpace, actions: GymSpace) -> None:
        """Misfit or UsageError unless a policy of these settings takes these weights."""
        config = PolicyConfig(**self.found.settings)  # type: ignore[arg-type]
        known = 4 * sum(array.size for array in self.found.arrays.values()) + LARGEST_CRITIC
        with no_larger_than(known):
            policy = initial_policy(observations, actions, config, 0, critic=True, masked=False)
        self.fill(policy)

    def fill(self, policy: ActorCritic) -> None:
        arrays = self.found.arrays | ({} if self.statistics is None else self.statistics.arrays(policy.layout))
        names = set(policy.state_dict())
        fresh = {name for name in names if self.found.fresh_critic and name.startswith(("critic.", "critic_encoder."))}
        if wrong := names - fresh ^ set(arrays):
            raise Misfit(f"{min(wrong)} is missing, or not a part of such a policy")
        weights_shape(policy, arrays).check(arrays)
        policy.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()}, strict=not fresh)

    def on_start(self, trainer: Trainer) -> None:
        self.run = trainer.run
        self.fill(trainer.policy)
        scaling = trainer.collector.reward_normalizer
        if scaling is not None and self.statistics is not None and self.statistics.returns is not None:
            scaling.moments.load_state_dict(self.statistics.returns)
        trainer.begin_at(self.steps)
        if trainer.run is not None:
            trainer.run.note(f"imported from {self.source}")
        trainer.stop("imported")
