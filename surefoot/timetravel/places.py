"""The first place at which two updates differ, in the order in which an update computes things."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from surefoot.timetravel.capture import tensors_of

if TYPE_CHECKING:
    from surefoot.timetravel.capture import Update
    from surefoot.timetravel.gradients import Gradients

# What one env step computes, in this order. The rest of a rollout is filled in when all steps are done.
STEP = ("obs", "inputs", "dist_params", "action", "log_prob", "reward", "terminated", "truncated", "valid")


@dataclass(frozen=True)
class Place:
    """One number of one tensor, and its two values. Where the shapes differ, there is no index."""

    what: str  # weights before the update, rollout, batch, gradient of minibatch 1, weights after the update, …
    tensor: str
    index: tuple[int, ...] | None
    values: tuple[float, float] | tuple[str, str]
    sample: tuple[int, int] | None = None  # (step of the rollout, env)

    def __str__(self) -> str:
        where = "" if self.index is None else f" at {list(self.index)}"
        if self.sample is not None:
            where += f" (step {self.sample[0]} of env {self.sample[1]})"
        left, right = (f"{x:.9g}" if isinstance(x, float) else x for x in self.values)
        return f"{self.what}: {self.tensor}{where} is {left} in A, {right} in B"

    def as_dict(self) -> dict[str, object]:
        index, sample = (None if x is None else list(x) for x in (self.index, self.sample))
        return {
            "what": self.what,
            "tensor": self.tensor,
            "index": index,
            "sample": sample,
            "a": self.values[0],
            "b": self.values[1],
        }


def first_place(a: Update, b: Update) -> Place | None:
    """Where the two updates first differ; None: they are the same."""
    return next(_places(a, b), None)


def _places(a: Update, b: Update) -> Iterator[Place]:
    yield from different("weights before the update", a.weights_before, b.weights_before)
    yield from _rollouts(tensors_of(a.rollout), tensors_of(b.rollout))
    if a.batch is not None and b.batch is not None:
        envs = a.batch.num_envs
        for place in different("batch", tensors_of(a.batch), tensors_of(b.batch)):
            of_sample = place.index and "context" not in place.tensor
            sample = divmod(place.index[0], envs) if place.index and of_sample else None
            yield Place(place.what, place.tensor, place.index, place.values, sample)
    yield from _gradients(a.gradients, b.gradients)
    yield from different("weights after the update", a.weights_after, b.weights_after)


def _rollouts(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Iterator[Place]:
    """By time first: what differs at step 3 is the cause of what differs at step 4."""
    found: list[tuple[int, int, Place]] = []
    for order, name in enumerate(STEP):
        for place in different("rollout", {name: a[name]}, {name: b[name]}):
            if place.index is None:
                yield place
                return
            time, env = place.index[:2]
            found.append((time, order, Place("rollout", name, place.index, place.values, (time, env))))
    yield from (place for _, _, place in sorted(found, key=lambda item: item[:2]))
    rest = [{name: x[name] for name in x if name not in STEP} for x in (a, b)]
    yield from different("rollout", *rest)


def _gradients(a: Gradients, b: Gradients) -> Iterator[Place]:
    for what, left, right in (
        ("policy gradient", a.policy, b.policy),
        ("natural step", a.natural_step, b.natural_step),
    ):
        if left is not None and right is not None:
            yield from different(what, dict(a.tensors(left)), dict(b.tensors(right)))
    for number in range(min(len(a), len(b))):
        yield from different(f"gradient of minibatch {number + 1}", a[number], b[number])
    yield from different("gradients", {"norms": a.norms}, {"norms": b.norms})


def different(what: str, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Iterator[Place]:
    """The first number in each of these tensors that is not the same in both."""
    for name in dict.fromkeys([*a, *b]):
        if name not in a or name not in b:
            yield Place(what, name, None, ("there" if name in a else "missing", "there" if name in b else "missing"))
            continue
        left, right = a[name], b[name]
        if left.shape != right.shape or left.dtype != right.dtype:
            yield Place(what, name, None, (_kind(left), _kind(right)))
            continue
        apart = left != right
        if left.is_floating_point():
            apart &= ~(left.isnan() & right.isnan())
        if bool(apart.any()):
            index = tuple(int(i) for i in apart.nonzero()[0])
            yield Place(what, name, index, (float(left[index]), float(right[index])))


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
