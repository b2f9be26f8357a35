"""The gradients of one update, by minibatch and by tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from surefoot.engine.torch.learner import Learner

LARGEST = 2**29  # bytes of gradients kept per update; for later minibatches only the norms are kept


@dataclass(frozen=True)
class Slot:
    """The position of a parameter in the vector of all of them."""

    name: str
    begin: int
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.begin + torch.Size(self.shape).numel()


@dataclass(frozen=True, eq=False)
class Gradients:
    """What the learner computed in an update, as flat vectors; `tensors` gives a vector's parts their names.

    A gradient is that of the loss, before its norm is clipped. Where the actor takes a natural step, the minibatches
    are those that fit the critic.
    """

    minibatches: Tensor  # [K, P] in the order of the steps; P: all trained parameters
    norms: Tensor  # [all minibatches]
    policy: Tensor | None  # [actor's parameters] of the objective (ascent), where a natural step was taken
    natural_step: Tensor | None  # [actor's parameters] before the line search
    slots: tuple[Slot, ...]
    first_trained: int = 0  # where the minibatches' vectors begin

    def __repr__(self) -> str:
        kept = "" if len(self) == len(self.norms) else f" ({len(self)} kept)"
        natural = "" if self.natural_step is None else ", natural step"
        return f"Gradients({len(self.norms)} minibatches{kept} of {self.minibatches.shape[-1]:,} numbers{natural})"

    def __len__(self) -> int:
        return len(self.minibatches)

    def __getitem__(self, minibatch: int) -> dict[str, Tensor]:
        """The gradient of one minibatch, by tensor."""
        return dict(self.tensors(self.minibatches[minibatch], self.first_trained))

    def tensors(self, vector: Tensor, begin: int = 0) -> Iterator[tuple[str, Tensor]]:
        """The parts of a vector that starts at parameter number `begin`, as views with the parameters' shapes."""
        for slot in self.slots:
            if slot.begin >= begin and slot.end - begin <= len(vector):
                yield slot.name, vector[slot.begin - begin : slot.end - begin].view(slot.shape)

    @property
    def tensor_norms(self) -> dict[str, float]:
        """The norm of each tensor's part, as the root of the mean square over the kept minibatches; largest first."""
        found: dict[str, float] = {}
        if len(self):
            squares = self.minibatches.double().square().mean(0)
            found = {name: float(part.sum().sqrt()) for name, part in self.tensors(squares, self.first_trained)}
        if self.policy is not None:
            found |= {name: float(part.double().norm()) for name, part in self.tensors(self.policy)}
        return dict(sorted(found.items(), key=lambda item: -item[1]))


class Gathering:
    """Collects the gradients of an update as they are computed."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._kept: list[Tensor] = []
        self._norms: list[Tensor] = []
        self._once: dict[str, Tensor] = {}

    def take(self, kind: Literal["minibatch", "policy", "natural_step"], vector: Tensor) -> None:
        if kind != "minibatch":
            self._once[kind] = vector.detach().cpu().clone()
            return
        self._norms.append(torch.linalg.vector_norm(vector).cpu())
        if vector.numel() * vector.element_size() * len(self._kept) < LARGEST:
            self._kept.append(vector.detach().cpu().clone())

    def gathered(self) -> Gradients:
        learner = self._learner
        kept = (
            torch.stack(self._kept)
            if self._kept
            else torch.zeros((0, len(learner.flat.vector)), dtype=torch.float32, device="cpu")
        )
        norms = torch.stack(self._norms) if self._norms else torch.zeros(0, dtype=torch.float32, device="cpu")
        once = self._once
        return Gradients(
            kept, norms, once.get("policy"), once.get("natural_step"), slots_of(learner), learner.first_trained
        )


def slots_of(learner: Learner) -> tuple[Slot, ...]:
    """The position of each of the policy's parameters in the learner's vector."""
    names = {id(parameter): name for name, parameter in learner.policy.named_parameters()}
    slots: list[Slot] = []
    for parameter in (*learner.flat.actor_list, *learner.flat.critic_list):
        begin = slots[-1].end if slots else 0
        slots.append(Slot(names[id(parameter)], begin, tuple(parameter.shape)))
    return tuple(slots)
