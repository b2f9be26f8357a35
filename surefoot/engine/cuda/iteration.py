"""Whole iterations as one CUDA graph each: rollout, estimate, update and statistics, with nothing read in between.

Starting the kernels of an iteration takes a host longer than a GPU needs to run them. A graph starts them by one call,
and what the host wants to know (metrics, episodes) is read from it afterwards, as one block. The next iteration begins
before the last one is read, so that the GPU never waits; it can be taken back, because a graph begins by copying all
that it changes. The reference is the loop of `training.trainer`, whose bits these iterations have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from surefoot.engine.collecting.device_episodes import packed_episodes
from surefoot.engine.collecting.device_storage import DeviceStorage
from surefoot.engine.contract import Done
from surefoot.engine.cuda.copying import copy_all
from surefoot.engine.cuda.passes import NUMBERS, structure
from surefoot.engine.cuda.stepping import FusedStepping
from surefoot.engine.episodes import EpisodeColumns
from surefoot.engine.torch.instruments import due
from surefoot.engine.torch.modes import own_modes
from surefoot.engine.torch.summary import understood
from surefoot.envs.device_envs import DeviceEnvs
from surefoot.errors import SurefootError

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.collecting.collector import Collector
    from surefoot.engine.contract import Learns
    from surefoot.engine.cuda.learner import CudaLearner
    from surefoot.engine.cuda.passes import FixedLoss, FixedPasses
    from surefoot.engine.cuda.recorder import Recorder, Work
    from surefoot.engine.episodes import Episode
    from surefoot.engine.torch.learner import Learner
    from surefoot.engine.torch.summary import Names
    from surefoot.types import Array

WHAT = "the iteration"  # for messages
RATES = ("learning_rate", "max_grad_norm")  # settings that a recorded iteration is told before it starts,
TOLD = (*RATES, "clip_ratio", *NUMBERS)  # with the numbers of the loss: these may have schedules
MOST_AHEAD = 2  # iterations that may be under way
MOST_STEPS = 2**23  # of a rollout, any of which may end an episode: 96 bytes each; starting kernels costs nothing there
TRIED_FIRST = 2  # updates in the ordinary way, which choose kernels and make what a recording needs


def not_whole(collector: Collector, learner: CudaLearner, algorithm: Learns) -> str | None:
    """Why iterations of this run are not recorded whole; None if they may be."""
    config: Any = algorithm.config
    limit = collector.envs.time_limit
    reasons = {
        "the rollout is not one kernel": not isinstance(collector.stepping, FusedStepping),
        "the algorithm decides something during an update": not vars(type(algorithm)).get("decides_nothing", False),
        "an update may end early": getattr(config, "stop_kl", None) is not None,
        "advantages are computed anew for each epoch": getattr(config, "recompute_advantage", False),
        "the mean is shifted by noise": bool(getattr(config, "mean_noise", 0.0)),
        "the optimizer's clock is restarted": learner.optimizer.kind == "adam-rel",
        "actor and critic have optimizers of their own": learner.optimizer.of_critic is not None,
        "another setting than rates and weights has a schedule": not set(config.changing) <= set(TOLD),
        "the loss is no declaration": algorithm.terms(1.0) is None,
        "envs are reset for each rollout": collector.reset_each_rollout,
        "several processes share the envs": collector.group.size > 1,
        "an env may be truncated twice in a rollout": limit is not None and limit < collector.length,
        "episodes have numbers of their own": bool(collector.tracker.info_keys),
        "a table of episodes would be too large": collector.most_steps > MOST_STEPS,
    }
    return next((reason for reason, true in reasons.items() if true), None)


@contextmanager
def nothing_read(recorder: Recorder, learner: Learner) -> Iterator[list[tuple[Names, Tensor]]]:
    """Nothing is read on the host, nor copied from it. Collects what updates would have read: their metrics."""
    kept: list[tuple[Names, Tensor]] = []
    before, recorder.busy, learner.keep = recorder.busy, True, lambda names, unread: kept.append((names, unread))
    try:
        yield kept
    finally:
        recorder.busy, learner.keep = before, None


class Recording:
    """One kind of iteration, and what the host knows of it."""

    def __init__(self, passes: FixedPasses, loss: FixedLoss, remaining: float = 1.0) -> None:
        """`remaining`: what is left of the budget where it is recorded, which decides the terms that the loss has."""
        self.passes, self.loss, self.form, self.remaining = passes, loss, structure(loss.loss), remaining
        self.work: Work = lambda: None
        self.names: Names = ([], [])  # of the metrics in the report, in order
        self.shown: list[str] = []  # those after them
        self.said: dict[str, float] = {}  # metrics that the algorithm gave itself
        self.steps = 0  # of the optimizer
        self.report: Tensor | None = None  # all that the host reads, float64
        self.read: list[Tensor] = []  # the same on the host, of each of the last

    def tell(self, columns: list[Tensor]) -> None:
        block = torch.cat([column.double() for column in columns])
        if self.report is None:
            self.report = torch.zeros_like(block)
            size, pinned = len(block), block.is_cuda
            self.read = [
                torch.zeros(size, dtype=torch.float64, device="cpu", pin_memory=pinned) for _ in range(MOST_AHEAD)
            ]
        self.report.copy_(block)


class Flight:
    """An iteration that was begun and has not been read: what the host must know to understand it or to undo it."""

    def __init__(self, recording: Recording, generators: list[torch.Generator], learner: CudaLearner) -> None:
        self.recording, self.update, self.rate = recording, learner.update, learner.learning_rate
        self.steps = learner.optimizer.steps  # before it
        self.draws = [generator.get_state() for generator in generators]
        on_gpu = recording.report is not None and recording.report.is_cuda
        self.event = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call] # set when it is over


class WholeIterations:
    """The iterations of one run, of which two may be under way."""

    def __init__(self, collector: Collector, learner: CudaLearner, algorithm: Learns, recorder: Recorder) -> None:
        self.collector, self.learner, self.algorithm, self.recorder = collector, learner, algorithm, recorder
        self._flights: list[Flight] = []
        self._kinds: dict[tuple[object, ...], Recording] = {}  # by whether they are measured, by halves, and the loss
        self._generators: list[torch.Generator] = []
        self._known = False  # the device knows the open episodes
        storage, device = collector.storage, collector.device
        assert isinstance(storage, DeviceStorage)
        self.storage, self.num_envs, self.length = storage, collector.envs.num_envs, collector.length

        def zeros(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.float64, device=device)

        self._carried = zeros(2, self.num_envs)  # return and length of the open episodes
        self._columns = zeros(self.length * self.num_envs + 1, 4)  # the episodes that ended
        self._read_columns = [torch.zeros_like(self._columns) for _ in range(MOST_AHEAD)]  # of each of the last
        self._begun = 0  # iterations
        self._live = self._changed()
        self._kept, self._older = ([torch.zeros_like(x) for x in self._live] for _ in range(MOST_AHEAD))
        self._aside = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def _changed(self) -> list[Tensor]:
        """Everything that an iteration changes and a later one depends on."""
        collector, learner, optimizer = self.collector, self.learner, self.learner.optimizer
        assert isinstance(collector.envs, DeviceEnvs)
        found = [learner.flat.vector, optimizer.first, optimizer.second, *learner.policy.buffers()]
        found += [*collector.envs.tensors, self.storage.obs[self.length], self.storage.start[self.length]]
        normalizer = self.storage.normalizer
        return [*found, self._carried, *([] if normalizer is None else normalizer.tensors)]

    @property
    def busy(self) -> bool:
        return bool(self._flights)

    @property
    def ahead(self) -> bool:
        """Whether another one may be begun before the last one is read."""
        return len(self._flights) < MOST_AHEAD and self.learner.adaptive_kl is None

    @property
    def more(self) -> bool:
        return False  # somebody may want to look after any of them

    @property
    def at_once(self) -> bool:
        return False

    def rest(self) -> None:
        return None

    def begin(self, update: int, remaining: float) -> bool:
        """Start the iteration of this number, if it can be done whole."""
        loss = self.algorithm.terms(remaining)
        recording = None if loss is None else self._recording(update, remaining, structure(loss))
        if recording is None or loss is None:
            return False
        learner, optimizer = self.learner, self.learner.optimizer
        before = optimizer.steps
        learner.update, optimizer.steps = update, before + sum(each.recording.steps for each in self._flights)
        learner.set_rates(remaining)
        recording.loss.load(loss)
        recording.passes.plan()
        if not self._known and not self._flights:
            tracker = self.collector.tracker
            self._carried[0].copy_(torch.from_numpy(tracker.ret))
            self._carried[1].copy_(torch.from_numpy(tracker.length))
        flight = Flight(recording, self._generators, learner)
        optimizer.steps = before
        recording.work()
        optimizer.steps = before  # where nothing is recorded, the work has counted
        assert recording.report is not None
        recording.read[self._begun % MOST_AHEAD].copy_(recording.report, non_blocking=True)
        self._read_columns[self._begun % MOST_AHEAD].copy_(self._columns)
        if flight.event is not None:
            flight.event.record()
        self._flights.append(flight)
        self._begun += 1
        return True

    def end(self) -> Done | None:
        """What the iteration that was begun first gave. None: it must not stand and is taken back, with those after it;
        done in the ordinary way, it says why.
        """
        flight, learner = self._flights[0], self.learner
        recording, slot = flight.recording, (self._begun - len(self._flights)) % MOST_AHEAD
        if flight.event is not None:
            flight.event.synchronize()
        numbers, size, shown = recording.read[slot].numpy(), sum(map(len, recording.names)), recording.shown
        told, (sound, number), carried = np.split(numbers, [size + len(shown), size + len(shown) + 2])
        learner.update = flight.update
        try:
            metrics = understood(learner, recording.names, told[:size].tolist()) if sound else None
        except SurefootError:
            metrics = None
        if metrics is None:
            self.take_back()
            return None
        self._flights.pop(0)
        self._known = True
        learner.optimizer.steps = flight.steps + recording.steps
        metrics |= {**recording.said, "learning_rate": flight.rate}
        learner.adapt_rate(metrics["kl"])
        metrics |= dict(zip(shown, told[size:].tolist(), strict=True))
        episodes = self._episodes(self._read_columns[slot][: int(number)], carried)
        return Done(self.length * self.num_envs, episodes, metrics)

    def take_back(self) -> None:
        """Everything is as after the last iteration that was read."""
        if self._flights:
            first = self._flights[0]
            copy_all(self._live, self._kept if len(self._flights) == 1 else self._older)
            for generator, state in zip(self._generators, first.draws, strict=True):
                generator.set_state(state)
            self._flights = []

    def leave(self) -> None:
        """The next iteration is done in the ordinary way."""
        self._known = False

    def _episodes(self, rows: Tensor, carried: Array) -> Sequence[Episode]:
        """`rows` are copied beside the iteration that is under way, not after it."""
        with nullcontext() if self._aside is None else torch.cuda.stream(self._aside):
            columns = EpisodeColumns.of_numbers(*rows.T.contiguous().cpu().numpy())
        self.collector.tracker.finish_many(columns, *carried.reshape(2, -1))
        return self.collector.tracker.take()

    def _recording(self, update: int, remaining: float, form: tuple[object, ...]) -> Recording | None:
        """The recorded iteration of the kind that this update has; None if it is done in the ordinary way.

        `form`: the terms of its loss. A schedule may begin or end one.
        """
        stepping, asked, latest = self.collector.stepping, self.learner.measured, self.learner.latest
        assert isinstance(stepping, FusedStepping)
        if update < TRIED_FIRST or asked is None or latest is None or self.learner.observer is not None:
            return None
        if not stepping.plays or self.recorder.failed(WHAT):
            return None
        kind = due(update, *asked[:2]) if self.learner.instruments else (False, False)
        if kind[0] and not self.learner.looks_by_kernels:
            return None  # it may need a gradient of its own, or the numbers of the loss on the host
        own = [self.collector.generator, self.learner.generator]
        if [id(x) for x in own] != [id(x) for x in self._generators]:
            self._kinds, self._generators = {}, own  # a resumed run has others
        if (*kind, form) not in self._kinds:
            if structure(latest[1].loss) != form:
                return None  # the ordinary way makes passes for it
            found = self._record(update, Recording(*latest, remaining))
            if found is None:
                return None
            self._kinds[*kind, form] = found
        return self._kinds[*kind, form]

    def _record(self, update: int, recording: Recording) -> Recording | None:
        learner, steps = self.learner, self.learner.optimizer.steps
        number, learner.update = learner.update, update
        changed = [*self._live, *self._kept, *self._older]  # another iteration may be under way, to be taken back
        try:
            recording.work = self.recorder.record(
                WHAT, lambda: self._work(recording), self.collector.device, changed, self._generators
            )
        finally:
            learner.update, learner.optimizer.steps = number, steps
        return None if self.recorder.failed(WHAT) else recording

    def _work(self, recording: Recording) -> None:
        """The iteration, with all that the host wants to know of it in the recording's report."""
        collector, storage, length, learner = self.collector, self.storage, self.length, self.learner
        stepping, steps = collector.stepping, self.learner.optimizer.steps
        assert isinstance(stepping, FusedStepping)
        with nothing_read(self.recorder, learner) as kept:
            copy_all(self._older, self._kept)
            copy_all(self._kept, self._live)
            with own_modes(gradients=False):
                storage.continue_from(length)
                stepping.play(collector, collector.noise())
                number, carried = packed_episodes(*storage.flags(length), self._carried, self._columns)
                ends = stepping.places(storage).ends
                with storage.with_ends(ends):
                    rollout = collector.learnable(length, recording.remaining)
                sound = ends.fine.all()
            with own_modes(gradients=True):
                recording.said = self.algorithm.update(learner, rollout)
            with own_modes(gradients=False):
                shown = learner.absorb(rollout)
                self._carried.copy_(carried)
                ((recording.names, unread),) = kept
                numbers = [unread, *(x.reshape(1) for x in shown.values()), sound[None], number[None]]
                recording.tell([*numbers, self._carried.flatten()])
        recording.shown, recording.steps = list(shown), learner.optimizer.steps - steps
