"""Copies of everything that went into one update, and of its results."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from surefoot.timetravel.gradients import Gathering, Gradients

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from surefoot.math.operations import Operations
    from surefoot.training.trainer import Trainer
    from surefoot.types import Batch, Rollout

    Data = TypeVar("Data", bound=DataclassInstance)


@runtime_checkable
class Estimates(Protocol):
    """An algorithm that can be asked for its batch. A user's own algorithm may lack this."""

    def estimate(self, rollout: Rollout, operations: Operations) -> Batch: ...


@dataclass(frozen=True)
class Samples:
    """What the update did to the policy at each sample of the batch: computed with the weights after it."""

    ratio: Tensor  # [B] π_new(a|s) / π_old(a|s)
    kl: Tensor  # [B] KL(π_old(·|s) ‖ π_new(·|s))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Update:
    """One update. All tensors are copies on the CPU."""

    update: int  # its number, as in metrics.jsonl
    step: int  # after the update
    rollout: Rollout  # what was collected, before anything was learned from it
    batch: Batch | None  # its advantages and targets, flattened; None: the algorithm does not estimate them apart
    weights_before: dict[str, Tensor]  # the policy's tensors, normaliser included
    weights_after: dict[str, Tensor]
    gradients: Gradients
    samples: Samples | None
    metrics: dict[str, float]  # from this update alone

    def arrays(self) -> dict[str, Tensor]:
        """Every tensor under a name: `rollout/reward`, `batch/advantage`, `before/actor.0.weight`, …"""
        found = tensors_of(self.rollout, "rollout/")
        found |= {} if self.batch is None else tensors_of(self.batch, "batch/")
        found |= {} if self.samples is None else tensors_of(self.samples, "samples/")
        found |= {f"before/{name}": tensor for name, tensor in self.weights_before.items()}
        found |= {f"after/{name}": tensor for name, tensor in self.weights_after.items()}
        return found | tensors_of(self.gradients, "gradients/")


class Capture:
    """Copies the update that it sees; if there are several, the last one."""

    def __init__(self) -> None:
        self.seen: Update | None = None
        self._gathering: Gathering | None = None

    def before_update(self, trainer: Trainer, rollout: Rollout) -> None:
        algorithm, batch = trainer.algorithm, None
        if isinstance(algorithm, Estimates):
            with torch.no_grad():
                batch = copied(algorithm.estimate(rollout, trainer.learner.operations))
        self._gathering = Gathering(trainer.learner)
        weights = weights_of(trainer)
        self.seen = Update(
            update=trainer.update + 1,
            step=trainer.step + rollout.num_steps,
            rollout=copied(rollout),
            batch=batch,
            weights_before=weights,
            weights_after=weights,  # replaced after the update; a rejected one leaves them unchanged
            gradients=self._gathering.gathered(),
            samples=None,
            metrics={},
        )

    def gradient(self, kind: Literal["minibatch", "policy", "natural_step"], vector: Tensor, /) -> None:
        assert self._gathering is not None
        self._gathering.take(kind, vector)

    def after(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        assert self.seen is not None
        self.seen = replace(
            self.with_gradients(),
            weights_after=weights_of(trainer),
            samples=None if self.seen.batch is None else _samples(trainer, self.seen.batch),
            metrics=dict(metrics),
        )

    def with_gradients(self) -> Update:
        """What was seen, with the gradients that were computed so far."""
        assert self.seen is not None
        assert self._gathering is not None
        return replace(self.seen, gradients=self._gathering.gathered())


def _samples(trainer: Trainer, batch: Batch) -> Samples:
    batch = copied(batch, trainer.device)
    with torch.no_grad():
        outputs = trainer.policy.evaluate(batch.obs, batch.action, batch.context)
        ratio = (outputs.log_prob - batch.log_prob).exp()
        return Samples(ratio.cpu(), trainer.learner.kl_from(batch).cpu())


def weights_of(trainer: Trainer) -> dict[str, Tensor]:
    """The policy as a checkpoint has it."""
    return {name: tensor.detach().cpu().clone() for name, tensor in trainer.policy.state_dict().items()}


def copied(data: Data, device: torch.device | str = "cpu") -> Data:
    """A copy with its own tensors, including those of nested dataclasses."""
    changed: dict[str, object] = {}
    for field in fields(data):
        value = getattr(data, field.name)
        if isinstance(value, Tensor):
            changed[field.name] = value.detach().to(device, copy=True)
        elif is_dataclass(value) and not isinstance(value, type):
            changed[field.name] = copied(value, device)
    return replace(data, **changed)


def tensors_of(data: DataclassInstance, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a dataclass by name, including those of nested dataclasses."""
    found: dict[str, Tensor] = {}
    for field in fields(data):
        value = getattr(data, field.name)
        if isinstance(value, Tensor):
            found[f"{prefix}{field.name}"] = value
        elif is_dataclass(value) and not isinstance(value, type):
            found |= tensors_of(value, f"{prefix}{field.name}/")
    return found
