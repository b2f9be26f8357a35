"""Whole iterations of a population as one CUDA graph. `WholeIterations` does the same for one run.

The members are ordinary runs: each has its policy, envs, optimizer and generators, and can do an iteration by itself.
In between, the population holds the state of all of them in tensors with an axis of agents (`load`, `give`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from surefoot.engine.cuda.fused_passes import FusedPasses
from surefoot.engine.cuda.iteration import Recording, nothing_read
from surefoot.engine.cuda.optimizer import planned
from surefoot.engine.cuda.passes import numbers_of, structure
from surefoot.engine.cuda.population.flight import MOST_PAGES, Flight
from surefoot.engine.cuda.population.learner import PopulationLearner
from surefoot.engine.cuda.population.pages import Page, Plan
from surefoot.engine.cuda.population.rollouts import PopulationRollouts
from surefoot.engine.cuda.stepping import FusedStepping
from surefoot.engine.torch.instruments import due
from surefoot.engine.torch.modes import own_modes
from surefoot.envs.device_envs import DeviceEnvs
from surefoot.envs.device_rewards import DeviceRewardNormalizer
from surefoot.errors import SurefootError

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.collecting.collector import Collector
    from surefoot.engine.contract import Learns, Turn
    from surefoot.engine.cuda.learner import CudaLearner
    from surefoot.engine.cuda.recorder import Recorder

WHAT = "the iteration of all agents"  # for messages
PAGES = 2**30  # bytes on the device for episodes that have not been read


class Parts(NamedTuple):
    """What a population needs of one run."""

    collector: Collector
    learner: CudaLearner
    algorithm: Learns


class Population:
    """The iterations of all members, begun together. One that must not stand is taken back alone."""

    def __init__(self, members: Sequence[Parts], recorder: Recorder) -> None:
        self.parts, self.recorder, self.agents = list(members), recorder, len(members)
        self.collectors = [part.collector for part in members]
        self.learners = [part.learner for part in members]
        self.num_envs, self.device = self.collectors[0].envs.num_envs, self.collectors[0].device
        self.learner = PopulationLearner(self.learners, self.num_envs, recorder)
        self.rollouts = PopulationRollouts(self.collectors, self.learner.nets, self.learner.operations, recorder)
        self._kinds: dict[tuple[bool, bool], Recording] = {}  # whether they are measured, and by halves
        self._generators: list[torch.Generator] = []
        stacked = [self.learner.flat.vector, self.learner.first, self.learner.second, *self.rollouts.live]
        self._live, self._kept = stacked, [torch.zeros_like(x) for x in stacked]
        self._own = [self._of_member(part) for part in members]  # what is not stacked
        self._own_kept = [[torch.zeros_like(x) for x in own] for own in self._own]
        self.loaded = [False] * self.agents  # whose state is here, newer than their own
        self._draws: list[list[Tensor]] = []  # the generators of each agent, before the iteration
        self._tried = False
        # As text, because a schedule equals every other one that has the same largest value.
        self._settings = [repr(part.algorithm.config) for part in members]

    @staticmethod
    def _of_member(part: Parts) -> list[Tensor]:
        normalizer = part.collector.reward_normalizer
        found = list(part.learner.policy.buffers())
        return [*found, *normalizer.tensors] if isinstance(normalizer, DeviceRewardNormalizer) else found

    def load(self, agent: int) -> None:
        """Take over from the member's own tensors."""
        learner, last = self.learners[agent], self.collectors[agent].start()
        self.learner.flat.vector[agent].copy_(learner.flat.vector)
        self.learner.first[agent].copy_(learner.optimizer.first)
        self.learner.second[agent].copy_(learner.optimizer.second)
        self.rollouts.load(agent, last)
        self.loaded[agent] = True

    def give(self, agent: int) -> None:
        """Bring the member's own tensors to the present state, if it is here."""
        if self.loaded[agent]:
            learner = self.learners[agent]
            learner.flat.vector.copy_(self.learner.flat.vector[agent])
            learner.optimizer.first.copy_(self.learner.first[agent])
            learner.optimizer.second.copy_(self.learner.second[agent])
            self.rollouts.give(agent)
            self.loaded[agent] = False  # it may be changed there

    def begin(self, turns: Sequence[Turn]) -> Flight | None:
        """Start the next iterations of these members. None: they do the next one by themselves."""
        if not turns or not self._possible(turns, 0):
            return None
        for turn in turns:
            if not self.loaded[turn.agent]:
                self.load(turn.agent)
        self._keep()
        self._look_for_generators()
        flight, alike = Flight(self, turns), self._alike(turns)
        room = max(1, PAGES // self.rollouts.columns.nbytes)
        for ahead in range(min(MOST_PAGES, room, *(len(turn.remaining) for turn in turns))):
            page = self._launch(alike, ahead, flight.steps) if self._possible(turns, ahead) else None
            if page is None:
                break
            flight.add(page)
        for agent in set(range(self.agents)) - {turn.agent for turn in turns}:
            self.take_back(agent)  # it was not its turn
        return flight if flight.pages else None

    def _keep(self) -> None:
        """Copy everything that an iteration changes, so that it can be taken back."""
        for kept, live in zip(self._kept, self._live, strict=True):
            kept.copy_(live)
        for copies, own in zip(self._own_kept, self._own, strict=True):
            for kept, live in zip(copies, own, strict=True):
                kept.copy_(live)
        self._draws = [[one.get_state() for one in self._drawn(agent)] for agent in range(self.agents)]

    def _alike(self, turns: Sequence[Turn]) -> list[list[Turn]]:
        """The turns whose members are told the same: for 256 seeds, it is computed once."""
        found: dict[tuple[object, ...], list[Turn]] = {}
        for turn in turns:
            learner = self.learners[turn.agent]
            rate = (learner.optimizer.steps, learner.rate_scale, learner.rate_is_set)
            found.setdefault((turn.remaining, *rate, self._settings[turn.agent]), []).append(turn)
        return list(found.values())

    def _launch(self, alike: Sequence[Sequence[Turn]], ahead: int, steps: int) -> Page | None:
        """One more iteration, after so many steps of the optimizers. None: it is not like the one that was recorded."""
        recording = self._recording(alike[0][0].update + ahead)
        each = [self._plan(own[0].agent, own[0].remaining[ahead], steps) for own in alike]
        plans = [plan for plan in each if plan is not None and recording and structure(plan.loss) == recording.form]
        if recording is None or len(plans) < len(alike):
            return None
        which = np.zeros(self.agents, np.int64)  # plan of each agent; whose turn it is not, does as the first ones do
        for number, own in enumerate(alike):
            which[[turn.agent for turn in own]] = number
        passes = self.learner.all_passes
        assert passes is not None
        passes.tell(
            np.stack([plan.table for plan in plans])[which],
            np.array([plan.numbers for plan in plans])[which],
            np.array([plan.limit for plan in plans])[which],
        )
        recording.work()
        assert recording.report is not None
        return Page(recording, plans, which, self.rollouts.columns)

    def _plan(self, agent: int, remaining: float, steps: int) -> Plan | None:
        _, learner, algorithm = self.parts[agent]
        loss, passes, optimizer = algorithm.terms(remaining), self.learner.all_passes, learner.optimizer
        assert passes is not None
        if loss is None:
            return None
        learner.set_rates(remaining)
        before, optimizer.steps = optimizer.steps, optimizer.steps + steps
        table = planned(optimizer, passes.table.shape[1])
        optimizer.steps = before
        limit = learner.max_grad_norm or 0.0
        return Plan(loss, numbers_of(loss), table, limit, optimizer.learning_rate, optimizer.rate_factor)

    def _drawn(self, agent: int) -> list[torch.Generator]:
        return [self.collectors[agent].generator, self.learners[agent].generator]

    def take_back(self, agent: int) -> None:
        """The member is as before the last iteration that was begun."""
        for live, kept in zip(self._live, self._kept, strict=True):
            live[agent].copy_(kept[agent])
        for own, kept in zip(self._own[agent], self._own_kept[agent], strict=True):
            own.copy_(kept)
        for generator, state in zip(self._drawn(agent), self._draws[agent], strict=True):
            generator.set_state(state)

    def ready(self) -> bool:
        """Whether kernels do what a common iteration needs. The first member tries it, once."""
        learner, stepping = self.learners[0], self.collectors[0].stepping
        if learner.latest is None and not self._tried:
            self._tried = True
            try_out(self.parts[0])
        passes = None if learner.latest is None else learner.latest[0]
        plays = isinstance(stepping, FusedStepping) and stepping.plays
        return isinstance(passes, FusedPasses) and plays and not self.recorder.failed(WHAT)

    def _possible(self, turns: Sequence[Turn], ahead: int) -> bool:
        """Whether these updates, so many after the next ones, can be done together."""
        updates = {turn.update + ahead for turn in turns}
        return self.ready() and len({self._kind(update) for update in updates}) == 1

    def _kind(self, update: int) -> tuple[bool, bool]:
        """Whether this update is measured in full, and whether by halves of its batch, too."""
        asked = self.learners[0].measured
        assert asked is not None
        return due(update, *asked[:2]) if self.learner.instruments else (False, False)

    def _recording(self, update: int) -> Recording | None:
        """The recorded iteration of the kind that this update has; None if it cannot be recorded."""
        kind, self.learner.update = self._kind(update), update
        like = self.learner.prepare()
        if kind not in self._kinds:
            recording = Recording(like, like.loss)
            changed = [*self._live, *(x for own in self._own for x in own)]
            recording.work = self.recorder.record(
                WHAT, lambda: self._work(recording), self.device, changed, self._generators
            )
            self._kinds[kind] = recording
        return None if self.recorder.failed(WHAT) else self._kinds[kind]

    def _look_for_generators(self) -> None:
        generators = self._all_drawn()
        if [id(one) for one in generators] != [id(one) for one in self._generators]:
            self._kinds, self._generators = {}, generators  # a resumed run has others

    def _all_drawn(self) -> list[torch.Generator]:
        return [one for agent in range(self.agents) for one in self._drawn(agent)]

    def _work(self, recording: Recording) -> None:
        """The iteration, with all that the host wants to know of it in the recording's report."""
        learner, rollouts = self.learner, self.rollouts
        with nothing_read(self.recorder, learner) as kept:
            with own_modes(gradients=False):
                number, carried = rollouts.play()
                rollout = rollouts.learnable()
                sound = rollouts.sound()
            with own_modes(gradients=True):
                recording.said = self.parts[0].algorithm.update(learner, rollout)
            with own_modes(gradients=False):
                shown = learner.absorb(rollout)
                rollouts.carried.copy_(carried)
                ((recording.names, unread),) = kept
                rows = torch.cat([unread.double(), *(x.double()[None] for x in shown.values()), sound.double()[None]])
                recording.tell([number[None], rows.T.reshape(-1), carried.flatten()])
        assert learner.all_passes is not None
        recording.shown, recording.steps = list(shown), learner.all_passes.steps


def try_out(part: Parts) -> None:
    """Let a run do an update in the ordinary way, which compares the kernels with PyTorch, and undo it."""
    collector, learner, algorithm = part
    optimizer, envs = learner.optimizer, collector.envs
    assert isinstance(envs, DeviceEnvs)
    changed = [learner.flat.vector, optimizer.first, optimizer.second, *envs.tensors, *Population._of_member(part)]
    generators = [collector.generator, learner.generator]
    before, draws = [tensor.clone() for tensor in changed], [one.get_state() for one in generators]
    tracked, steps = collector.tracker.state_dict(), optimizer.steps
    try:
        rollout = collector.collect(1.0)
        with own_modes(gradients=True):
            learner.set_rates(1.0)
            algorithm.update(learner, rollout)
    except SurefootError:  # it will be said when the run comes to it
        learner.latest = None
    finally:
        for tensor, old in zip(changed, before, strict=True):
            tensor.copy_(old)
        for generator, state in zip(generators, draws, strict=True):
            generator.set_state(state)
        collector.tracker.take()
        collector.tracker.load_state_dict(tracked)
        collector.continue_from(None)
        optimizer.steps = steps
