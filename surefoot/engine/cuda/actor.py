"""A policy that acts on a GPU, with its step recorded as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from surefoot.engine.torch.actor import TorchActor
from surefoot.engine.torch.modes import own_modes
from surefoot.policies.actor_critic import Noise

if TYPE_CHECKING:
    from surefoot.engine.cuda.head_loss import FusedHead
    from surefoot.engine.cuda.recorder import Recorder, Work
    from surefoot.engine.cuda.whole_nets import WholeNets
    from surefoot.policies.actor_critic import ActorCritic

    Out: TypeAlias = tuple[Tensor, Tensor, Tensor]


WHAT = "acting"  # for messages


class RecordedActor(TorchActor):
    """A `TorchActor` that copies its inputs into their places and starts a graph."""

    def __init__(
        self,
        policy: ActorCritic,
        recorder: Recorder,
        nets: WholeNets | None = None,
        scorer: WholeNets | FusedHead | None = None,
    ) -> None:
        """`scorer`: kernels learn from the actions, so they compute log π, too: the first ratio is 1 to the bit."""
        super().__init__(policy)
        self.recorder, self.nets, self._scorer = recorder, nets, scorer
        self._places: Places | None = None

    def act(self, obs: Tensor, noise: Noise, start: Tensor | None, memory: Tensor | None, out: Out) -> None:
        if self.policy.device.type != "cuda" or self.recorder.busy:  # it is recorded as a part of a rollout
            super().act(obs, noise, start, memory, out)
            return
        if self._places is None or not self._places.fit(obs, noise):
            with own_modes(gradients=False):
                self._places = Places(self.policy, obs, noise)
                self._places.record(super().act, self.recorder)
        self._places.act(obs, noise, start, memory, out)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return super().log_prob(params, action) if self._scorer is None else self._scorer.log_prob(params, action)


class Places:
    """Inputs and outputs of one step of n envs that stay where they are."""

    def __init__(self, policy: ActorCritic, obs: Tensor, noise: Noise) -> None:
        device, actions, size = policy.device, policy.actions, len(obs)
        self.policy, self.obs = policy, torch.zeros_like(obs, device=device)
        matrix = None if noise.matrix is None else torch.zeros_like(noise.matrix, device=device)
        self.noise = Noise(torch.zeros_like(noise.rows, device=device), matrix)
        self.start = torch.ones(size, dtype=torch.bool, device=device)
        self.memory = policy.initial_memory(size)
        self.params = torch.zeros(size, actions.num_params, dtype=torch.float32, device=device)
        self.action = torch.zeros(size, *actions.shape, dtype=actions.dtype, device=device)
        # Both in float64, which holds either exactly: waiting for the device costs more than a copy to the host.
        width = self.params.shape[1] + self.action[0].numel()
        self.both = torch.zeros(size, width, dtype=torch.float64, device=device)
        self._work: Work = lambda: None

    def fit(self, obs: Tensor, noise: Noise) -> bool:
        return obs.shape == self.obs.shape and noise.rows.shape == self.noise.rows.shape

    def record(self, act: Callable[..., None], recorder: Recorder) -> None:
        def work() -> None:
            start = None if self.memory is None else self.start
            act(self.obs, self.noise, start, self.memory, (self.params, self.action, self.params[:, 0]))
            self.both[:, : self.params.shape[1]] = self.params
            self.both[:, self.params.shape[1] :] = self.action.reshape(len(self.action), -1)

        changed = [self.params, self.action, self.both, *self.policy.buffers()]
        changed += [] if self.memory is None else [self.memory]
        self._work = recorder.record(WHAT, work, self.obs.device, changed)

    def act(self, obs: Tensor, noise: Noise, start: Tensor | None, memory: Tensor | None, out: Out) -> None:
        with own_modes(gradients=False):
            self.obs.copy_(obs, non_blocking=True)
            self.noise.rows.copy_(noise.rows)
            if self.noise.matrix is not None and noise.matrix is not None:
                self.noise.matrix.copy_(noise.matrix)
            if self.memory is not None and memory is not None and start is not None:
                self.start.copy_(start)
                self.memory.copy_(memory)
            self._work()
            if memory is not None and self.memory is not None:
                memory.copy_(self.memory)
            self._give(out)

    def _give(self, out: Out) -> None:
        if out[1].device == self.action.device:
            out[0].copy_(self.params)
            out[1].copy_(self.action)
            return
        width, both = self.params.shape[1], self.both.to(out[1].device)
        out[0].copy_(both[:, :width])
        out[1].copy_(both[:, width:].reshape(out[1].shape))
