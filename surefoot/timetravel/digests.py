"""Fingerprints of many updates, so that the first one that differs is found without keeping any."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, NamedTuple

from torch import Tensor

from surefoot.timetravel.capture import tensors_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from surefoot.training.trainer import Trainer
    from surefoot.types import Rollout


class Digest(NamedTuple):
    """The fingerprint of one update."""

    before: bytes  # the weights that it began with
    whole: bytes  # those, its rollout, its gradients, and the weights after it


class Digests:
    """Takes the fingerprint of every update that it sees; `found` has them by number."""

    def __init__(self) -> None:
        self.found: dict[int, Digest] = {}
        self._before, self._hash = b"", blake2b()

    def before_update(self, trainer: Trainer, rollout: Rollout) -> None:
        self._hash = blake2b()
        self._add(trainer.policy.state_dict().values())
        self._before = self._hash.digest()
        self._add(tensors_of(rollout).values())

    def gradient(self, kind: Literal["minibatch", "policy", "natural_step"], vector: Tensor, /) -> None:
        self._add([vector])

    def after(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        self._add(trainer.policy.state_dict().values())
        self.found[trainer.update] = Digest(self._before, self._hash.digest())

    def _add(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self._hash.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            self._hash.update(tensor.detach().cpu().contiguous().numpy().tobytes())
