"""All workers of a run: starts them, sends them requests together, replaces lost ones, and stops them."""

from __future__ import annotations

import os
import platform
import select
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from surefoot import errors
from surefoot.envs.seeds import episode_seed
from surefoot.envs.workers.memory import IDLE, STEPPING, Field, counts_field, map_fields
from surefoot.envs.workers.messages import encode, frame
from surefoot.envs.workers.process import Lost, Worker
from surefoot.errors import EnvError, SurefootError, UsageError

if TYPE_CHECKING:
    from surefoot.envs.config import EnvConfig
    from surefoot.envs.workers.acting import Equipment
    from surefoot.envs.workers.messages import Described, Problem

START_TIMEOUT = 60.0  # minimum time allowed for a worker to import and make its envs
CLOSE_TIMEOUT = 2.0  # time for all workers to close their envs; then they are killed
MOST_NAMED = 16  # an error lists at most this many envs


class Supervisor:
    """`count` workers, each with a slice of the envs. `described`: their description of those envs.

    `timeout`: seconds that a step, a reset or a start may take without progress. `restarts`: total number of dead or
    hung workers to replace; `notice` is called for each.
    """

    def __init__(
        self,
        config: EnvConfig,
        num_envs: int,
        run_seed: int,
        count: int,
        *,
        timeout: float,
        restarts: int,
        notice: Callable[[str], None] | None,
        first: int = 0,
    ) -> None:
        self.config, self.run_seed, self.first = config, run_seed, first
        self.timeout, self.restarts, self.notice, self.restarted = timeout, restarts, notice, 0
        # The interval at which we check whether awaited workers are alive.
        self._patience, self._next_look = min(0.25, timeout / 4), 0.0
        self._settings = config.as_dict()
        try:
            encode(self._settings, strict=True)
        except TypeError as error:
            raise UsageError(f"workers need env_kwargs of plain data, to hand to another process: {error}") from None
        if not hasattr(os, "memfd_create"):
            raise UsageError(f"worker processes need Linux and this is {platform.system()}; train with workers=0")
        self.described: Described | None = None  # until the first worker has reported
        self.workers: list[Worker] = []
        self.memory = os.memfd_create("surefoot-envs")
        self.fields: list[Field] = [counts_field(num_envs)]
        self.equipment: Equipment | None = None  # with which workers act on their own
        self._error: EnvError | None = None
        # If close() is never called, stop them when the program ends.
        self.kill = weakref.finalize(self, _end_all, self.workers, self.memory, os.getpid())
        try:
            self.counts = map_fields(self.memory, self.fields, create=True)["counts"]
            self._start([num_envs * k // count for k in range(count + 1)])
        except BaseException:
            self.kill()
            raise

    def _start(self, edges: Sequence[int]) -> None:
        for number, first in enumerate(edges[:-1]):
            envs = range(first, edges[number + 1])
            self.workers.append(Worker(number, envs, self.timeout, self.counts, self.memory))
        for worker in self.workers:
            self._launch(worker)
        for worker in self.workers:
            try:
                self._meet(worker)
            except Lost as lost:
                raise self._gone(worker, lost, "while starting") from None

    def _launch(self, worker: Worker) -> None:
        worker.start()
        order = {"config": self._settings, "first": worker.envs.start, "count": len(worker.envs)}
        with suppress(Lost):  # waiting for the reply raises it again
            worker.send(
                frame(b"n", order | {"run_seed": self.run_seed, "before": self.first}), max(self.timeout, START_TIMEOUT)
            )

    def _meet(self, worker: Worker) -> None:
        """The worker's envs are made: check that they match the others."""
        described: Described = self._reply(worker)
        self.described = self.described or described
        for (what, found), first in zip(described.items(), self.described.values(), strict=True):
            if found != first:
                raise EnvError(f"the envs differ: {what} of env {worker.envs.start} is {found}, of env 0 {first}")

    def attach(self, fields: list[Field]) -> None:
        """Give every worker its part of the shared memory, which now has these fields."""
        self.fields = fields
        _, lost = self.ask_all({"do": "attach", "fields": fields})
        for worker, error in lost.items():
            raise self._gone(worker, error, "while starting") from None

    def equip(self, equipment: Equipment) -> str:
        """Give the workers, and those that replace them, what they need to act alone; returns why they cannot."""
        replies, _ = self.ask_all({"do": "equip", "equipment": equipment})  # whoever is lost now is missed later
        why: str = next((reply["why"] for reply in replies if reply is not None), "")
        self.equipment = None if why else equipment
        return why

    def settle(self) -> None:
        """Read the replies that an interrupt has left unread."""
        for worker in self.workers:
            while worker.awaited and worker.process is not None:
                with suppress(Lost):  # whoever asks next is told
                    worker.receive()

    def close(self) -> None:
        """Close every env; the first error is raised when all are closed. A worker that does not exit is killed."""
        deadline = time.monotonic() + CLOSE_TIMEOUT
        try:
            for worker in self.workers:
                worker.quit()
            problems = [problem for worker in self.workers if (problem := worker.left(deadline)) is not None]
        finally:
            self.kill()
        if problems:
            raise self._raised(problems[0])

    # asking

    def _reply(self, worker: Worker) -> Any:
        tag, value = worker.receive()
        if tag == b"e":
            raise self._raised(value)
        return value

    def _raised(self, message: Problem) -> SurefootError:
        """The worker's error, as it would have been raised in this process."""
        text = message["message"]
        if text.startswith("unknown environment") and self.config.env in gym.envs.registration.registry:
            text = f"{self.config.env!r} was registered in this process only; for workers, name it module:Id"
        error: SurefootError = getattr(errors, message["kind"], EnvError)(text)
        for note in (*message["notes"], message["traceback"]):
            if note:
                error.add_note(note)
        return error

    def ask(self, messages: Sequence[bytes]) -> tuple[list[Any], dict[Worker, Lost]]:
        """The replies of all workers, and the workers lost meanwhile. Raises the first env's error, if any."""
        self._check()
        lost: dict[Worker, Lost] = {}
        for worker, message in zip(self.workers, messages, strict=True):
            try:
                worker.send(message)
            except Lost as error:
                lost[worker] = error
        replies: list[Any] = []
        problem: SurefootError | None = None
        for worker in self.workers:
            value = None
            try:
                if worker not in lost:
                    value = self._reply(worker)
            except Lost as error:
                lost[worker] = error
            except SurefootError as error:
                problem = problem or error
            replies.append(value)
        if problem is not None:
            raise problem
        return replies, lost

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if not self.kill.alive:
            raise UsageError("the envs are closed")

    def send(self, worker: Worker, message: bytes) -> None:
        """Send a request to one worker; `take` returns the reply, or says that it is lost."""
        self._check()
        try:
            worker.send(message)
        except Lost:
            worker.awaited = True

    def answered(self) -> list[Worker]:
        """The workers that have answered, or never will; waits for at least one. Empty: nobody was asked."""
        while asked := [worker for worker in self.workers if worker.awaited]:
            waiting = {worker.sock.fileno(): worker for worker in asked if worker.process is not None}
            found = [worker for worker in asked if worker.process is None or worker.buffer]
            poll = select.poll()
            for file in waiting:
                poll.register(file, select.POLLIN)
            found += [waiting[file] for file, _ in poll.poll(0 if found else 1000 * self._patience)]
            if not found or time.monotonic() > self._next_look:  # check regularly, even if other workers keep answering
                self._next_look = time.monotonic() + self._patience
                for worker in set(asked) - set(found):
                    with suppress(Lost):  # handled in the next round
                        worker.still_there()
            if found:
                return found
        return []

    def take(self, worker: Worker) -> tuple[Any, Lost | None]:
        """The worker's reply, or how it was lost. Raises the env's error, if any."""
        try:
            return self._reply(worker), None
        except Lost as error:
            return None, error

    def ask_all(self, order: dict[str, object]) -> tuple[list[Any], dict[Worker, Lost]]:
        return self.ask([frame(b"x", order)] * len(self.workers))

    # lost workers

    def _gone(self, worker: Worker, lost: Lost, doing: str) -> EnvError:
        """The error for a lost worker: which, how, and where each of its envs was."""
        states = dict(zip(worker.envs, worker.counts.tolist(), strict=True))
        busy = next((i for i, (_, _, now) in states.items() if now != IDLE), None)
        if busy is not None:
            doing = f"in {'step' if states[busy][2] == STEPPING else 'reset'} of env {busy}"
        before = self.first
        where = [
            f"env {before + i} (seed {episode_seed(self.run_seed, before + i, number)}, episode {number}, step {step})"
            for i, (number, step, _) in sorted(states.items(), key=lambda item: (item[0] != busy, item[0]))
            if number >= 0
        ] or [f"env {i}" for i in states]
        more = f" and {len(where) - MOST_NAMED} more" if len(where) > MOST_NAMED else ""
        names = ", ".join(where[:MOST_NAMED]) + more
        error = EnvError(f"env worker {worker.number} of {self.config.env} {lost} {doing}; it had {names}")
        if lost.trace:
            error.add_note(f"Where it was:\n{lost.trace.rstrip()}")
        return error

    @property
    def may_restart(self) -> bool:
        return self.restarted < self.restarts

    def spend(self, worker: Worker, lost: Lost, doing: str) -> None:
        """Use up one restart, or raise the error if none is left."""
        error = self._gone(worker, lost, doing)
        worker.end()
        if not self.may_restart:
            if self.restarts:
                error.add_note(f"{self.restarts} restarts (--restart-workers) were used up.")
            self._error = error
            raise error
        self.restarted += 1
        if self.notice is not None:
            self.notice(f"{error}; it is started again ({self.restarted} of {self.restarts})")

    def revive(self, worker: Worker, lost: Lost, doing: str, keep: Sequence[bool] = ()) -> None:
        """Start a new process with its envs at the start of their next episode (of the same one where `keep`)."""
        kept = keep or [False] * len(worker.envs)
        self.spend(worker, lost, doing)
        episodes = [episode + (not same) for episode, same in zip(worker.counts[:, 0].tolist(), kept, strict=True)]
        while True:
            try:
                self._launch(worker)
                self._meet(worker)
                orders: list[dict[str, object]] = [{"do": "attach", "fields": self.fields}]
                if self.equipment is not None:
                    orders.append({"do": "equip", "equipment": self.equipment})
                for order in (*orders, {"do": "begin", "episodes": episodes}):
                    worker.send(frame(b"x", order))
                    self._reply(worker)
                return
            except Lost as error:
                self.spend(worker, error, "while starting")
                episodes = [episode + 1 for episode in episodes]


def _end_all(workers: Sequence[Worker], memory: int, owner: int) -> None:
    if os.getpid() != owner:  # a forked copy
        return
    for worker in workers:
        worker.end()
    os.close(memory)
