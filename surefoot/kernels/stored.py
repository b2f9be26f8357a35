"""Acting on the arrays of a rollout, one call per step. The reference is `Collector.choose`. Imports no torch."""

from __future__ import annotations

import math
from ctypes import POINTER, byref, c_int64, c_void_p
from typing import TYPE_CHECKING

import numpy as np

from surefoot.kernels.arrays import address
from surefoot.kernels.calls import Library, Signatures
from surefoot.kernels.library import load
from surefoot.kernels.structs import Stored

if TYPE_CHECKING:
    from surefoot.kernels.arrays import Numbers
    from surefoot.kernels.handle import Handle

SIGNATURES: Signatures = {"act_stored": [c_void_p, c_void_p, POINTER(Stored), c_int64, c_int64, c_int64]}


class StoredActing:
    """Acts for the envs of a storage whose arrays `[T, N, ...]` are allocated once."""

    def __init__(self, net: Handle, obs: Numbers, params: Numbers, action: Numbers, log_prob: Numbers) -> None:
        """`obs`: `[T + 1, N, ...]` float32, raw; the others are filled."""
        num_envs, discrete = log_prob.shape[1], str(action.dtype).endswith("int64")
        numbers = math.prod(obs.shape[2:])
        assert numbers == net.width, (numbers, net.width)
        inputs = np.empty((num_envs, numbers), np.float32)
        drawn = np.empty((num_envs, math.prod(action.shape[2:])), np.float32)
        self.net, self._num_envs, self._length = net, num_envs, len(log_prob)
        self._kept = (obs, params, action, log_prob, inputs, drawn)
        self._args = Stored(
            envs=num_envs,
            numbers=numbers,
            discrete=discrete,
            obs=address(obs),
            params=address(params),
            action=address(action, np.int64 if discrete else np.float32),
            log_prob=address(log_prob),
            inputs=address(inputs),
            drawn=address(drawn),
        )
        self._reference = byref(self._args)
        self._call = Library(load("nn"), "sf_", SIGNATURES).act_stored

    def begin(
        self,
        theta: Numbers,
        noise: Numbers,
        normalizer: tuple[Numbers, Numbers] | None,
        start: Numbers | None = None,
        memory: Numbers | None = None,
    ) -> None:
        """A new rollout. `theta` has the policy's parameters. `normalizer`: (shift, scale). For a policy with memory:
        `start` `[T + 1, N]` and `memory` `[N, M]`.
        """
        assert noise.shape[:2] == (self._length, self._num_envs), noise.shape
        assert (memory is None) == (not self.net.remembered)
        args = self._args
        args.noise, args.start, args.memory = address(noise), address(start, np.bool_), address(memory)
        args.shift, args.scale = (None, None) if normalizer is None else map(address, normalizer)
        self._theta, self._during = address(theta), (theta, noise, normalizer, start, memory)

    def act(self, t: int, own: slice) -> None:
        """Step t of these envs; `memory` is updated in place."""
        assert 0 <= t < self._length
        assert 0 <= own.start < own.stop <= self._num_envs
        self._call(self.net.handle, self._theta, self._reference, t, own.start, own.stop - own.start)
