"""Saves what is needed to debug a failed run."""

from __future__ import annotations

import traceback
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors.torch
from torch import Tensor

from surefoot.errors import UsageError
from surefoot.runs.files import write_json
from surefoot.text import printable

if TYPE_CHECKING:
    from surefoot.runs import RunDirectory
    from surefoot.training.trainer import Trainer
    from surefoot.types import Rollout

LARGEST = 256 * 2**20  # bytes; larger rollouts are not saved


def write_crash(run: RunDirectory, trainer: Trainer, error: BaseException) -> Path | None:
    """`crash/<step>/`: the error with its traceback and, if an update failed, the rollout it was computed from.

    Nothing is written for a usage error, whose message says everything, or if the disk refuses it.
    """
    if isinstance(error, UsageError):
        return None
    folder = run.crash / str(trainer.step)
    try:
        for place in (run.crash, folder):  # never the run's own directory: it may have been deleted
            place.mkdir(exist_ok=True)
        rollout = _tensors(trainer.rollout)
        facts: dict[str, object] = {
            "error": f"{type(error).__name__}: {error}",
            "step": trainer.step,
            "update": trainer.update,
            "saved_step": trainer.saved_step,
            "algorithm": dict(trainer.algorithm.state),
            "learning_rate": trainer.learner.learning_rate,
            "rollout": {name: list(tensor.shape) for name, tensor in rollout.items()},
        }
        write_json(folder / "facts.json", facts)
        trace = printable("".join(traceback.format_exception(error)))
        (folder / "error.txt").write_text(trace, encoding="utf-8")
        if rollout and sum(t.numel() * t.element_size() for t in rollout.values()) <= LARGEST:
            safetensors.torch.save_file(rollout, folder / "rollout.safetensors")
    except OSError:
        return None
    return folder


def _tensors(rollout: Rollout | None) -> dict[str, Tensor]:
    if rollout is None:
        return {}
    found = {field.name: getattr(rollout, field.name) for field in fields(rollout)}
    return {name: x.detach().cpu().clone().contiguous() for name, x in found.items() if isinstance(x, Tensor)}
