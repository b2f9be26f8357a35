"""Builds a run's trainer again from its directory, and says what is not as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from surefoot.engine.group import ALONE
from surefoot.engine.names import BUILT_IN
from surefoot.engine.registry import uses_kernels
from surefoot.envs.checks import blamed
from surefoot.errors import CheckpointError, UsageError
from surefoot.kernels import library
from surefoot.runs.files import read_json
from surefoot.runs.manifest import different_machine, different_versions
from surefoot.training.build.envs import settle_workers
from surefoot.training.build.own_encoders import load_encoder
from surefoot.training.callbacks import Callback
from surefoot.training.config.lost_env import lost_env
from surefoot.training.config.resolve import TrainConfig, read_outline, resolve
from surefoot.training.evaluation.headless import go_headless
from surefoot.training.life.processes import different_number
from surefoot.training.life.session import evaluation_factory
from surefoot.training.life.trust import Trust, require_trust
from surefoot.training.loop.global_generators import seed_globals
from surefoot.training.reports.trackers import require_tracker
from surefoot.training.trainer import Trainer
from surefoot.user_code import load_object

if TYPE_CHECKING:
    from surefoot.engine.group import Group
    from surefoot.envs.make import Factory
    from surefoot.runs import RunDirectory
    from surefoot.training.evaluation.evaluate import MakeEnv
    from surefoot.types import GymEnv


def stored_config(directory: RunDirectory, trust: Trust, given: Mapping[str, object]) -> TrainConfig:
    """The settings of a run that can be built again from its directory. `given` overrules them."""
    instead = "; only runs on an env by id or by file can be resumed or replayed"
    if (reason := lost_env(directory, instead)) is not None:
        raise UsageError(reason)
    outline = read_outline(directory.config)
    require_trust(outline, trust, directory.path)
    config = resolve(preset=None, config_file=directory.config, overrides=given, agreed=outline.run.algo)
    if config.run.seed is None:
        raise CheckpointError(f"{directory.config} has no seed, though every run writes its own down")
    return replace(config, engines_before=_engines_before(directory))


def _engines_before(directory: RunDirectory) -> tuple[str, ...]:
    """The engines that the run may have started with, by its manifest: only they give the same bytes."""
    manifest = read_json(directory.manifest)
    chosen = manifest.get("engine_chosen")
    if chosen is None:  # runs of 0.1.0 say native or torch; torch may also mean hybrid
        acted = manifest.get("acting", manifest.get("engine"))
        return {"native": ("native",), "torch": ("hybrid", "torch")}.get(str(acted), ())
    return (chosen,) if chosen in list(BUILT_IN) else ()  # never code that only the manifest names


class Rebuilt(NamedTuple):
    """A run built again from its settings, at its beginning."""

    trainer: Trainer
    callbacks: list[Callback]  # those that the settings name
    notes: list[str]


def rebuild(config: TrainConfig, *, own_process: bool, group: Group = ALONE) -> Rebuilt:
    prepare_process(config, own_process)
    own = [load_callback(path) for path in config.run.callbacks]
    config, chosen = settle_workers(config, None, group)  # saved runs have a number here, unless the file was edited
    assert config.run.seed is not None
    encoder = load_encoder(config.policy)
    trainer = Trainer(config, config.run.seed, encoder=encoder, group=group, own_process=own_process)
    return Rebuilt(trainer, own, chosen)


def prepare_process(config: TrainConfig, own_process: bool) -> None:
    """Process-wide settings that must be in place before the first env is made."""
    assert config.run.seed is not None
    for name in config.run.trackers:
        require_tracker(name)
    if own_process:
        seed_globals(config.run.seed)
    if config.run.video_every is not None:
        go_headless()


def load_callback(path: str) -> Callback:
    made = load_object(path, "callbacks")
    callback = made() if isinstance(made, type) else made
    if not isinstance(callback, Callback):
        raise UsageError(f"callbacks={path!r} is not a surefoot.Callback; derive your class from it")
    return callback


def other_envs(
    trainer: Trainer, factory: Factory | None, *, ready_made: bool
) -> tuple[MakeEnv | None, Callable[[], GymEnv] | None]:
    """(makes envs to evaluate in, makes envs to film). A ready-made vector env cannot be made again."""
    config, spaces = trainer.config, (trainer.envs.observation_space, trainer.envs.action_space)
    if ready_made and config.run.eval_env is None:
        for name in ("eval_every", "target_return", "video_every"):
            if getattr(config.run, name) is not None:
                raise UsageError(f"{name} needs an env of its own beside the ready-made vector env; name an eval_env")
        return None, None
    film = None
    if config.run.video_every is not None:
        film = evaluation_factory(config, factory, spaces, render_mode="rgb_array")
        with blamed("close", config.env.env):
            film().close()
    return evaluation_factory(config, factory, spaces), film


def what_differs(trainer: Trainer, directory: RunDirectory) -> list[str]:
    """Versions, engine or machine that are not those the run began with: reasons for other bits."""
    notes = different_versions(directory) + _different_engine(trainer, directory)
    notes += different_number(trainer.group, directory)
    kernels = uses_kernels(trainer.config.engine)
    return notes + different_machine(directory, computed_with(trainer), kernels=kernels)


def computed_with(trainer: Trainer) -> dict[str, object]:
    """Properties of this process and machine that the last bits of the result depend on."""
    found: dict[str, object] = {
        "kernels": library.facts(),
        "torch_instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": trainer.threads.number,
    }
    return found | ({"gpu": torch.cuda.get_device_name(trainer.device)} if trainer.device.type == "cuda" else {})


def _different_engine(trainer: Trainer, directory: RunDirectory) -> list[str]:
    manifest = read_json(directory.manifest)
    before = manifest.get("engine", trainer.engine)
    known = "acting" in manifest  # earlier versions recorded only what acts
    if before == (trainer.engine if known else trainer.engines.acting):
        return []
    return [
        f"the run began with the {before} engine and continues with {trainer.engine} ({trainer.engines.reason}): "
        "the same algorithm, but not to the last bit"
    ]
