"""Detects observations outside their space. Whole rollouts are checked at once, which costs almost nothing.

A choice that does not exist, or an integer beyond its bounds, is an error. Real numbers often leave their declared
bounds without harm, so that is a warning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from surefoot.errors import EnvError
from surefoot.spaces.layout import CHOICES, space_at

if TYPE_CHECKING:
    from surefoot.spaces.layout import Layout, Leaf
    from surefoot.types import Rollout

EVERY_ONE, SAMPLED = 8, 16  # check each of the first 8 rollouts, then one in 16
ROUNDING = 1e-5  # relative tolerance for float32
DARK = 16.0  # out of 255: real images are never this dark for a whole rollout, but grids of symbols are


@dataclass(frozen=True)
class Range:
    """The valid range of a leaf's numbers, flattened."""

    leaf: Leaf
    low: Tensor
    high: Tensor
    whole: bool  # integers, so no tolerance

    @property
    def least(self) -> Tensor:
        return self.low if self.whole else self.low - ROUNDING * self.low.abs().clamp(min=1.0)

    @property
    def most(self) -> Tensor:
        return self.high if self.whole else self.high + ROUNDING * self.high.abs().clamp(min=1.0)


class SpaceWatch:
    """Checks the observations of rollouts, which are rows of a layout."""

    def __init__(self, layout: Layout, device: torch.device, *, trusted: bool = False) -> None:
        """`trusted`: the envs are ours, and stay within their spaces."""
        self.layout, self._count = layout, 0
        leaves = [] if trusted else layout.leaves
        found = [_range(leaf, space_at(layout.space, leaf.path), device) for leaf in leaves]
        self._ranges = [one for one in found if one is not None]
        self._choices = [one for one in self._ranges if one.leaf.kind in CHOICES]
        # Byte images, which may really hold symbols.
        self._images = [leaf for leaf in leaves if leaf.kind == "image" and leaf.low == 0 and leaf.high == 255]

    @property
    def due(self) -> bool:
        """Whether `look` wants to see the next rollout."""
        late = self._images if self._count == EVERY_ONE - 1 else []
        return bool(self._ranges if self._sampled else self._choices) or bool(late)

    @property
    def _sampled(self) -> bool:
        return self._count < EVERY_ONE or self._count % SAMPLED == 0

    def skip(self, rollouts: int = 1) -> None:
        """Rollouts are over that nobody needs to see."""
        self._count += rollouts

    def look(self, rollout: Rollout, step: int) -> list[tuple[str, str]]:
        """(name, message) of each warning; raises EnvError for errors. `step`: the run's step before this rollout."""
        number, sampled = self._count, self._sampled
        self._count += 1
        found = []
        for one in self._ranges if sampled else self._choices:
            values = self._values(rollout.obs[:-1], one.leaf)
            if (message := self._outside(one, values, rollout.valid, step)) is not None:
                found.append(("outside_space", message))
        if number == EVERY_ONE - 1:
            found += [("dark_image", said) for leaf in self._images if (said := self._dark(leaf, rollout)) is not None]
        return found

    def _values(self, obs: Tensor, leaf: Leaf) -> Tensor:
        """`[T, N, size]` in the space's own numbers, except that choices count from 0."""
        if not self.layout.plain:
            return obs[..., leaf.span]
        whole = obs if obs.is_floating_point() or obs.dtype == torch.uint8 else obs.long()
        return whole.flatten(2) if obs.dim() > 2 else whole[..., None]

    def _outside(self, one: Range, values: Tensor, valid: Tensor, step: int) -> str | None:
        uneven = one.leaf.kind in CHOICES and bool((values != values.floor()).any())
        if bool((values.amin((0, 1)) >= one.least).all() and (values.amax((0, 1)) <= one.most).all()) and not uneven:
            return None
        wrong = (values < one.least) | (values > one.most)
        if uneven:
            wrong |= values != values.floor()
        places = (wrong & valid[..., None]).nonzero()
        if not len(places):  # only in rows without an action
            return None
        t, env, at = (int(place) for place in places[0])
        return self._say(one, float(values[t, env, at]), env, at, step + t * values.shape[1] + env)

    def _say(self, one: Range, value: float, env: int, at: int, step: int) -> str:
        leaf = one.leaf
        start = int(np.ravel(leaf.start)[at if np.size(leaf.start) > 1 else 0])
        which = f" number {at}" if leaf.size > 1 else ""
        low, high = (float(side[at]) + start for side in (one.low, one.high))
        what = f"{leaf.name}{which} of env {env} is {value + start:g} at about step {step:,}"
        what += f"; its space says {low:g} to {high:g}"
        if one.whole:
            raise EnvError(f"{what}. Return what the space declares, or declare what you return")
        return f"{what}. The policy learns from it as it is; declare wider bounds"

    def _dark(self, leaf: Leaf, rollout: Rollout) -> str | None:
        most = float(self._values(rollout.obs[:-1], leaf).max())
        if not 0 < most <= DARK:
            return None
        return (
            f"{leaf.name} is declared as an image of 0 to 255 and divided by 255, but holds no number above {most:g}: "
            f"declare its own bounds (Box(0, {most:g}, ...)), or the network sees next to nothing"
        )


def _range(leaf: Leaf, space: object, device: torch.device) -> Range | None:
    """None if no number of the leaf's dtype can be out of range."""
    if leaf.kind in CHOICES:
        sizes = np.array(leaf.sizes or (2,) * leaf.size)
        low, high = np.zeros_like(sizes), sizes - 1
    else:
        assert isinstance(space, spaces.Box)
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        if not (np.isfinite(low).any() or np.isfinite(high).any()):
            return None
        if leaf.dtype.kind in "iu":
            every = np.iinfo(leaf.dtype.name)
            if (low == every.min).all() and (high == every.max).all():
                return None
    whole = leaf.dtype.kind != "f"
    kind = np.int64 if whole else np.float32
    least, most = (torch.from_numpy(side.astype(kind)).to(device) for side in (low, high))
    return Range(leaf, least, most, whole)
