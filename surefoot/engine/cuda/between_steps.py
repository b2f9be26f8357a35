"""Simulators of the user's that live on the device: from storing a step to the next actions, all is one CUDA graph.

The envs' own step runs as it is. What it returns is copied into tensors that stay where they are; the graph stores
them, normalises, asks the policy, draws the next actions and stores those. It finds the number of the step on the
device, so one recording serves them all. Started one by one, these kernels take the host longer than the GPU.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import torch

from surefoot.engine.collecting.device_storage import DeviceStorage
from surefoot.engine.collecting.stepping import step_all
from surefoot.engine.cuda.actor import WHAT
from surefoot.engine.torch.modes import own_modes
from surefoot.envs.tensor_envs import TensorEnvs
from surefoot.policies.actor_critic import Noise, NoiseRows

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.collecting.collector import Collector
    from surefoot.engine.cuda.recorder import Recorder
    from surefoot.types import TensorStep


class BetweenSteps:
    """Steps all envs together. The reference is `collecting.stepping.step_all`, which does what cannot be recorded."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._turn: Turn | None = None

    def __call__(self, collector: Collector, noise: NoiseRows, memory: Tensor | None) -> int:
        if self._turn is None and not self.recorder.failed(WHAT):
            with own_modes(gradients=False):
                turn = Turn(collector, noise, memory)
                turn.record(self.recorder)
            self._turn = turn
        if self._turn is None or self.recorder.failed(WHAT):
            self._turn = None
            return step_all(collector, noise, memory)
        self._turn.play(noise, memory)
        return collector.length


class Turn:
    """What is done between two steps, in fixed places: what the envs returned is stored, and the next actions drawn."""

    def __init__(self, collector: Collector, noise: NoiseRows, memory: Tensor | None) -> None:
        assert isinstance(collector.storage, DeviceStorage)
        self.collector, self.storage, device = collector, collector.storage, collector.device
        self.step = step = self.storage.staged()
        # What every step of these envs has. Several at once, because a call of PyTorch takes longer than a copy.
        self._always = [step.obs, step.reward, step.terminated, step.truncated]
        matrices = None if noise.matrices is None else noise.matrices.clone()
        self.noise = NoiseRows(noise.rows.clone(), matrices, noise.stretch)
        self.memory = None if memory is None else memory.clone()
        self.start = torch.ones_like(step.terminated)  # where `step.obs` is the first of an episode
        self.params, self.action = torch.zeros_like(self.storage.params[0]), torch.zeros_like(self.storage.action[0])
        self.index = torch.zeros(1, dtype=torch.int64, device=device)  # the step of the rollout
        self._lost = False  # whether a life may be lost in `step`

    def record(self, recorder: Recorder) -> None:
        """Nothing but `changed` has to be restored: the rest of the storage is filled anew by every rollout."""
        changed = [self.index, self.start, *self.collector.policy.buffers()]
        changed += [] if self.memory is None else [self.memory]
        self.step.obs.copy_(self.storage.obs[0])
        works = [
            recorder.record(WHAT, work, self.index.device, changed) for work in (self._act, self._both, self._store)
        ]
        self._begin, self._between, self._end = works

    def play(self, noise: NoiseRows, memory: Tensor | None) -> None:
        """A rollout. `memory` is changed in place."""
        envs, timer, length = self.collector.envs, self.collector.timer, self.collector.length
        assert isinstance(envs, TensorEnvs)
        began = perf_counter()
        with own_modes(gradients=False):
            self._load(noise, memory)
            self._begin()
        for t in range(length):
            sent = self.storage.to_env(t, slice(None))
            acted = perf_counter()
            step = envs.step(sent)
            stepped = perf_counter()
            with own_modes(gradients=False):
                self._take(step)
                (self._between if t + 1 < length else self._end)()
            self.storage.note(t, step)
            timer.add("act", acted - began)
            timer.add("env", stepped - acted)
            began = stepped
        if memory is not None and self.memory is not None:
            memory.copy_(self.memory)
        timer.add("act", perf_counter() - began)

    def _load(self, noise: NoiseRows, memory: Tensor | None) -> None:
        """What a rollout begins with."""
        self.noise.rows.copy_(noise.rows)
        if self.noise.matrices is not None and noise.matrices is not None:
            self.noise.matrices.copy_(noise.matrices)
        if self.memory is not None and memory is not None:
            self.memory.copy_(memory)
        self.step.obs.copy_(self.storage.obs[0])
        self.start.copy_(self.storage.start[0])
        self.index.zero_()

    def _take(self, step: TensorStep) -> None:
        """Copy what the envs returned, which may be buffers of their own, to where the graph finds it."""
        mine = self.step
        places, given = [*self._always], [step.obs, step.reward, step.terminated, step.truncated]
        pairs = [(mine.final_obs, step.final_obs), (mine.valid, step.valid), (mine.first, step.first)]
        pairs += [(place, step.info.get(key)) for key, place in mine.info.items()]
        for place, value in pairs:
            if place is not None and value is not None:
                places.append(place)
                given.append(value)
        torch._foreach_copy_(places, given)
        if step.life_lost is not None or self._lost:
            assert mine.life_lost is not None
            self._lost = step.life_lost is not None
            mine.life_lost.copy_(step.life_lost) if step.life_lost is not None else mine.life_lost.zero_()

    def _act(self) -> None:
        """Draw and store the actions for the observations that the envs show."""
        matrices = self.noise.matrices
        matrix = None if matrices is None else matrices.index_select(0, self.index // self.noise.stretch)[0]
        noise = Noise(self.noise.rows.index_select(0, self.index)[0], matrix)
        start = None if self.memory is None else self.start
        # These envs' actors compute log π of a whole rollout at once, so its place is not used.
        self.collector.actor.act(
            self.step.obs, noise, start, self.memory, (self.params, self.action, self.params[:, 0])
        )
        self.storage.params.index_copy_(0, self.index, self.params[None])
        self.storage.action.index_copy_(0, self.index, self.action[None])

    def _store(self) -> None:
        """Store what the envs returned. The next step comes, or after the last one the first: a try goes on from it."""
        for column, value in self.storage.columns(self.step, self.memory):
            column.index_copy_(0, self.index, value[None])
        if self.memory is not None:
            self.start.copy_(self.step.ended if self.step.first is None else self.step.first)
        self.index.add_(1).remainder_(self.collector.length)

    def _both(self) -> None:
        self._store()
        self._act()
