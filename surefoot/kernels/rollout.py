"""A whole rollout of native envs in one call. The reference is `engine.collecting.stepping.step_all`."""

from __future__ import annotations

from ctypes import POINTER, byref, c_int64, c_void_p, cast
from typing import TYPE_CHECKING

import numpy as np

from surefoot.kernels.arrays import address
from surefoot.kernels.calls import Library, Signatures
from surefoot.kernels.library import load
from surefoot.kernels.network import Network
from surefoot.kernels.structs import Finished as _Finished
from surefoot.kernels.structs import Rollout as _Rollout

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.kernels.classic import ClassicEnvs
    from surefoot.types import Array


SIGNATURES: Signatures = {"rollout": [c_void_p, c_void_p, POINTER(_Rollout), c_void_p]}


class NativeRollout:
    """Fills the arrays of a collector, `[T, N, ...]`, which are allocated once; `start` is needed for a memory."""

    def __init__(
        self,
        net: Network,
        envs: ClassicEnvs,
        arrays: dict[str, Array],
        bounds: tuple[float, float] | None,
        episodes: int,
    ) -> None:
        steps, num_envs = arrays["reward"].shape
        self.net, self.envs, self.arrays = net, envs, arrays
        numbers = envs.kind.num_obs
        self.final_index = np.zeros(steps * num_envs, np.int64)
        self.final_obs = np.zeros((steps * num_envs, numbers), np.float32)
        self.finished = (_Finished * (steps * num_envs))()
        remembered = net.remembered
        self.final_memory = np.zeros((steps * num_envs if remembered else 0, remembered), np.float32)
        low, high = bounds or (0.0, 0.0)
        types: dict[str, type[np.generic]] = {"action": envs.kind.action_dtype, "reward": np.float64}
        types |= dict.fromkeys(("terminated", "truncated", "valid", "start"), np.bool_)
        self._args = _Rollout(
            steps=steps,
            envs=num_envs,
            numbers=numbers,
            step=cast(envs.library.step, c_void_p).value,
            handle=envs.handle,
            discrete=envs.kind.num_actions > 0,
            low=low,
            high=high,
            episodes=episodes,
            final_index=address(self.final_index, np.int64),
            final_obs=address(self.final_obs),
            finished=cast(self.finished, c_void_p),
            final_memory=address(self.final_memory),
            **{name: address(array, types.get(name, np.float32)) for name, array in arrays.items()},
        )
        self._call = Library(load("nn"), "sf_", SIGNATURES).rollout

    def run(
        self,
        theta: Tensor,
        noise: Tensor,
        normalizer: tuple[Tensor, Tensor] | None,
        ret: Array,
        length: Array,
        memory: Tensor | None = None,
    ) -> int:
        """The number of steps; −1 − (t·N + n) if env n failed at step t.

        Updates the open episodes' `ret` and `length` `[N]` and `memory` `[N, M]` in place.
        """
        args = self._args
        args.memory = address(memory)
        args.noise, args.ret, args.length = address(noise), address(ret, np.float64), address(length, np.int64)
        args.shift, args.scale = (None, None) if normalizer is None else map(address, normalizer)
        used = c_int64()
        self._call(self.net.handle, address(theta), byref(args), byref(used))
        return used.value

    def finals(self) -> list[tuple[int, Array]]:
        """(t·N + n, last observation) of every truncation of the last run."""
        count = self._args.num_final
        return list(zip(self.final_index[:count].tolist(), self.final_obs[:count].copy(), strict=True))

    def final_memories(self) -> Array:
        """`[K, M]`: the memory before each of those observations."""
        return self.final_memory[: self._args.num_final].copy()

    def episodes(self) -> list[tuple[int, float, int, bool]]:
        """(env, return, length, truncated) of the episodes that ended in the last run, in order."""
        ended = self.finished[: self._args.num_finished]
        return [(end.env, end.ret, end.length, bool(end.truncated)) for end in ended]
