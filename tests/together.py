"""Several processes of a run, here as threads: the same group, without starting anything."""

import json
import threading

import torch

from surefoot.training.callbacks import Callback
from surefoot.training.config.resolve import resolve
from surefoot.training.trainer import Trainer


class Meeting:
    """Where the members of a group exchange what they have."""

    def __init__(self, size):
        self.parts, self.barrier = [None] * size, threading.Barrier(size, timeout=60)

    def exchange(self, index, value):
        self.parts[index] = value
        self.barrier.wait()
        found = list(self.parts)
        self.barrier.wait()
        return found


class Member:
    def __init__(self, meeting, index):
        self.size, self.index, self.meeting = len(meeting.parts), index, meeting

    def gather(self, value):
        return self.meeting.exchange(self.index, value)

    def gather_plain(self, value):
        return [json.loads(text) for text in self.gather(json.dumps(value))]

    def agree(self, value):
        return self.gather(value)[0]

    def sum_(self, numbers):
        return numbers.copy_(torch.stack(self.gather(numbers.clone())).sum(0))

    def max_(self, numbers):
        return numbers.copy_(torch.stack(self.gather(numbers.clone())).amax(0))


def together(size, work):
    """The results of `work(group)` in every member of a group."""
    meeting, results, errors = Meeting(size), [None] * size, []

    def run(index):
        try:
            results[index] = work(Member(meeting, index))
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    real = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if errors:
        raise (real or errors)[0]
    return results


class Recorder(Callback):
    """Keeps the first rollout and all metrics; stops after some updates."""

    def __init__(self, updates):
        self.updates, self.metrics, self.first = updates, [], None

    def on_rollout(self, trainer, rollout):
        if self.first is None:
            self.first = {name: getattr(rollout, name).clone() for name in ("obs", "action", "dist_params", "reward")}

    def on_update(self, trainer, metrics):
        self.metrics.append(dict(metrics))
        if trainer.update >= self.updates:
            trainer.stop("enough")


def trained(env, algo, settings, group, updates=1):
    """(the trainer, what the recorder saw)."""
    settings = {"total_steps": 100_000, "threads": 1, "num_envs": 8, "eval_episodes": 0, **settings}
    recorder = Recorder(updates)
    trainer = Trainer(resolve(env, algo, preset="none", overrides=settings), 3, callbacks=[recorder], group=group)
    trainer.train()
    return trainer, recorder
