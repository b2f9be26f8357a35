"""A ready-made `gymnasium.vector.VectorEnv` whose `reset` and `step` take and return PyTorch tensors: a GPU simulator.

Nothing here reads a tensor on the host: whether an episode ended is a mask on the device, not a branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from surefoot.envs.atari import LIFE_LOST
from surefoot.envs.checks import blamed, require_kind, reset_result, step_result, supported_spaces
from surefoot.envs.masks import MaskReader, vector_method
from surefoot.envs.vector_envs import declared_mode, final_columns
from surefoot.errors import EnvError, UsageError
from surefoot.spaces.layout import MASK, Layout, part_at
from surefoot.types import TensorStep

if TYPE_CHECKING:
    from surefoot.types import DType, Envs, GymVectorEnv, Info

FINAL = ("final_obs", "final_observation")  # the key in Gymnasium since 1.0, and before


def holds_tensors(obs: object) -> bool:
    """Whether an observation is made of PyTorch tensors."""
    return any(isinstance(leaf, Tensor) for leaf in leaves_of(obs))


def leaves_of(obs: object) -> Iterator[object]:
    """The arrays of an observation."""
    if isinstance(obs, (Mapping, tuple, list)):
        for part in obs.values() if isinstance(obs, Mapping) else obs:
            yield from leaves_of(part)
    else:
        yield obs


def device_of(envs: Envs) -> torch.device | None:
    """The device of envs that take and return tensors; None for envs on the host."""
    return envs.device if isinstance(envs, TensorEnvs) else None


class Simulator(VectorEnv[object, Tensor, Tensor]):
    """A vector env that has something to say before a run."""

    notes: tuple[str, ...] = ()


class TensorEnvs:
    """The three autoreset modes on the env's own device.

    * SAME_STEP: the true last observations are in `info["final_obs"]`, a batch like the observations, valid where an
      episode ended. It may be missing if none ended.
    * DISABLED: after every step, finished envs are reset by `reset(options={"reset_mask": done})` with a tensor that
      may be all False: checking whether any ended would wait for the device.
    * NEXT_STEP: as for NumPy vector envs; the step after an end is marked invalid.
    """

    exact_seeds, batched_actions = False, True
    render_modes: tuple[str, ...] = ()

    def __init__(self, envs: GymVectorEnv, begun: tuple[object, Info]) -> None:
        """`begun` is what the first, seeded reset returned."""
        self.envs, self.mode, self.num_envs = envs, declared_mode(envs), envs.num_envs
        self.observation_space, self.action_space = supported_spaces(envs, "single_")
        self.time_limit = envs.spec.max_episode_steps if envs.spec else None
        self._method = vector_method(envs)
        self.masks = MaskReader.find(
            self.observation_space,
            self.action_space,
            method=lambda: self._method is not None,
            in_info=lambda: MASK in begun[1],
        )
        self.layout = Layout(self.observation_space, self.masks.size)
        self._begun: tuple[object, Info] | None = begun
        self._steps = 0
        self.device = self._device(begun[0])
        self._offsets = [
            torch.as_tensor(leaf.start, dtype=torch.int64, device=self.device).reshape(-1)
            for leaf in self.layout.leaves
        ]
        self._none = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self._everyone = ~self._none
        self._ended = self._none
        self._odd: dict[str, Tensor] = {}  # [N]: envs whose flags were neither 0 nor 1
        self.notes: tuple[str, ...] = (
            "note: a ready-made vector env has one seed for all its episodes",
            f"note: the envs' tensors stay on {self.device}; faults of theirs are looked for once per rollout",
            *(envs.notes if isinstance(envs, Simulator) else ()),
        )

    def __str__(self) -> str:
        return f"{self.envs} (step {self._steps})"

    @property
    def separate_final(self) -> bool:
        """Whether final observations are separate; otherwise they are among the observations (NEXT_STEP)."""
        return self.mode is not AutoresetMode.NEXT_STEP

    def _device(self, obs: object) -> torch.device:
        found = list(leaves_of(obs))
        tensors = [leaf for leaf in found if isinstance(leaf, Tensor)]
        if len(tensors) < len(found):
            raise UsageError(f"{self.envs} mixes tensors and {_kinds(found)} in one observation; return tensors only")
        devices: set[torch.device] = {leaf.device for leaf in tensors}
        if len(devices) > 1:
            raise UsageError(f"{self.envs} has observations on several devices ({devices}); return them on one")
        return next(iter(devices))

    def reset(self) -> Any:
        """`[N, ...]` rows on the env's device."""
        obs, info = self._begun or self._reset()
        self._begun = None
        self._ended = self._none
        return self._rows(obs, info)

    def _reset(self, **how: Any) -> tuple[object, Info]:
        with blamed("reset", self):
            obs, info = reset_result(self.envs.reset(**how), self)
        return obs, info

    def step(self, action: object, active: Any = None) -> Any:
        """A vector env steps all or none: inactive envs (a mask on the device) are stepped too, and marked invalid.

        The result may be the simulator's own buffers, so it is to be stored before the next call.
        """
        self._steps += 1
        with blamed("step", self):
            raw, reward, terminated, truncated, info = step_result(self.envs.step(action), self)
        reward = self._column(reward, "rewards")
        terminated, truncated = self._flags(terminated, "terminated"), self._flags(truncated, "truncated")
        lost = info.get(LIFE_LOST)
        lost = None if lost is None else self._column(lost, LIFE_LOST).bool() & ~(terminated | truncated)
        if self.mode is AutoresetMode.SAME_STEP:
            given = next((info[name] for name in FINAL if info.get(name) is not None), None)
            final = None if given is None else self._rows(given, {}, self._everyone)
            step = TensorStep(self._rows(raw, info), reward, terminated, truncated, final_obs=final)
        elif self.mode is AutoresetMode.NEXT_STEP:
            done, ended = terminated | truncated, self._ended
            step = TensorStep(self._rows(raw, info, done), reward, terminated, truncated, valid=~ended, first=ended)
            lost, self._ended = None if lost is None else lost & ~ended, done
        else:
            step, info = self._and_reset(raw, reward, terminated, truncated, info)
        step.life_lost, step.info = lost, self._final_info(info)
        if active is not None:
            step.valid = active if step.valid is None else step.valid & active
        return step

    def _and_reset(
        self, raw: object, reward: Tensor, terminated: Tensor, truncated: Tensor, info: Info
    ) -> tuple[TensorStep, Info]:
        """Begin new episodes where one ended. Copies, because a reset may overwrite the simulator's buffers."""
        done = terminated | truncated
        final, info = self._rows(raw, info, done).clone(), {name: _copied(value) for name, value in info.items()}
        reward, terminated, truncated = reward.clone(), terminated.clone(), truncated.clone()
        fresh, fresh_info = self._reset(options={"reset_mask": done})
        obs = torch.where(_beside(done, final), self._rows(fresh, fresh_info, ~done), final)
        return TensorStep(obs, reward, terminated, truncated, final_obs=final), info

    def _rows(self, obs: object, info: Info, ended: Tensor | None = None) -> Tensor:
        """`[N, ...]` rows. Where an episode `ended`, no action is taken, so every action counts as legal."""
        layout = self.layout
        if layout.plain:
            rows = self._shaped(obs, layout.shape, "observations")
            require_kind(_numpy_kind(rows.dtype), layout, self.envs)
            return rows
        parts = []
        for leaf, start in zip(layout.leaves, self._offsets, strict=True):
            what = f"'{leaf.path}' of the observations" if leaf.path else "observations"
            parts.append(
                (self._shaped(part_at(obs, leaf.path), leaf.shape, what).reshape(self.num_envs, -1) - start).float()
            )
        if self.masks.source:
            with blamed("action_masks", self) if self.masks.source == "method" else nullcontext():
                mask = self.masks.given(obs, info, self._method, always=False)
            if mask is None:  # everything is legal
                mask = ~self._none[:, None].expand(-1, self.masks.size)
            mask = self._shaped(mask, (self.masks.size,), "action masks").bool()
            parts.append((mask if ended is None else mask | ended[:, None]).float())
        return torch.cat(parts, 1)

    def _shaped(self, value: object, shape: tuple[int, ...], what: str) -> Tensor:
        # Assigning a wrong shape would broadcast silently.
        if not isinstance(value, Tensor) or tuple(value.shape) != (self.num_envs, *shape):
            found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise EnvError(f"the {what} of {self.envs} must be a tensor of {(self.num_envs, *shape)}, not {found}")
        if value.is_complex():
            raise EnvError(f"the {what} of {self.envs} must be real numbers, not {value.dtype}")
        return value

    def _column(self, value: object, what: str) -> Tensor:
        return self._shaped(value, (), what)

    def _flags(self, value: object, what: str) -> Tensor:
        """`[N]` bool. Whether all numbers are 0 or 1 is checked later (`odd_flags`), because reading them here would
        wait for the device."""
        column = self._column(value, what)
        if column.dtype != torch.bool:
            self._odd[what] = self._odd.get(what, self._none) | ~((column == 0) | (column == 1))
        return column.bool()

    def odd_flags(self) -> None:
        """Raise an EnvError if a flag since the last call was neither 0 nor 1."""
        odd, self._odd = self._odd, {}
        for what, wrong in odd.items():
            if bool(wrong.any()):
                index = int(wrong.nonzero()[0])
                raise EnvError(f"vector env, index {index} returned {what} that are neither True nor False; use bool")

    def _final_info(self, info: dict[str, Any]) -> dict[str, Tensor]:
        columns = final_columns(info, self.mode)
        if not isinstance(columns, Mapping):
            raise EnvError(
                f"info['final_info'] of {self.envs} is of type {type(columns).__name__}; it must be a dict of tensors"
            )
        return {name: column for name, column in columns.items() if self._is_column(column)}

    def _is_column(self, value: object) -> bool:
        return isinstance(value, Tensor) and tuple(value.shape) == (self.num_envs,)

    def close(self) -> None:
        with blamed("close", self):
            self.envs.close()


@cache
def _numpy_kind(dtype: torch.dtype) -> DType:
    """NumPy's type for PyTorch's. It has no bfloat16, which is a float like others here."""
    name = "float32" if dtype == torch.bfloat16 else str(dtype).removeprefix("torch.")
    return np.dtype(name)


def _beside(mask: Tensor, rows: Tensor) -> Tensor:
    """Reshape `[N]` to as many axes as the rows have, for broadcasting."""
    return mask.reshape(-1, *(1,) * (rows.dim() - 1))


def _copied(value: object) -> object:
    return value.clone() if isinstance(value, Tensor) else value


def _kinds(values: list[object]) -> str:
    return ", ".join(sorted({type(value).__name__ for value in values if not isinstance(value, Tensor)}))
