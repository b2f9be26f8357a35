"""Faults of envs on a device, found once per rollout: numbers that are not finite, masks without a legal action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from surefoot.errors import EnvError, NonFiniteError

FINAL = "final observation"


class Shown(NamedTuple):
    """What the envs returned in a rollout."""

    obs: Tensor  # [T + 1, N, ...]
    reward: Tensor  # [T, N]
    finals: Tensor  # [K, ...]: the observations that truncated episodes ended with
    masks: Tensor | None = None  # [T, N, choices]
    sizes: Sequence[int] = ()  # of the choices that each component of an action has

    @property
    def numbers(self) -> dict[str, Tensor]:
        columns = {"observation": self.obs, "reward": self.reward, FINAL: self.finals[None]}
        return {what: values for what, values in columns.items() if values.is_floating_point()}

    @property
    def legal(self) -> Tensor | None:
        """Where every action mask leaves a legal action, `[T, N]` bool; None without masks."""
        if self.masks is None:
            return None
        parts = torch.split(self.masks, list(self.sizes), -1)
        return torch.stack([(part > 0.5).any(-1) for part in parts]).all(0)


def sound(shown: Shown) -> Tensor:
    """`[checks]` bool, unread: whether all numbers of each kind are finite, and all masks leave a legal action."""
    checks, legal = [x.isfinite().all() for x in shown.numbers.values()], shown.legal
    return torch.stack(checks if legal is None else [*checks, legal.all()])


def require_sound(shown: Shown, final_index: Tensor) -> None:
    """Raise an error for the first fault. Waits for the device once. `final_index`: the truncated steps t·N + n."""
    found = sound(shown).tolist()
    if all(found):
        return
    numbers, legal, faults = shown.numbers, shown.legal, []
    for (what, values), fine in zip(numbers.items(), found, strict=False):
        if not fine:
            t, index = (int(x) for x in (~values.isfinite()).reshape(*values.shape[:2], -1).any(2).nonzero()[0])
            if what == FINAL:
                t, index = divmod(int(final_index[index]), shown.reward.shape[1])
            faults.append((t, f"{what} of vector env, index {index} is not finite, at step {t} of the rollout"))
    if faults:  # report the first, which may have caused the others
        raise NonFiniteError(min(faults, key=lambda fault: fault[0])[1])
    if legal is not None and not found[-1]:
        t, index = (int(x) for x in legal.logical_not().nonzero()[0])
        raise EnvError(f"vector env, index {index}: the action mask leaves no legal action at step {t} of the rollout")
