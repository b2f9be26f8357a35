"""A tune whose runs are not trained: a pool that makes up their returns from their settings, and a clock to turn."""

import hashlib
import json
import math
import os
from pathlib import Path

from surefoot.sweep.display import Silent
from surefoot.sweep.pool import Ended
from surefoot.tuning.budget import Stopwatch, parse_budget
from surefoot.tuning.folder import TuneFolder, Wish
from surefoot.tuning.task import make_task
from surefoot.tuning.trial_runner import TrialRunner
from surefoot.tuning.tune import carry_out_tune

SEARCH = {"learning_rate": "0.0001..0.01:log", "gamma": "0.9,0.95,0.98,0.99", "activation": "tanh,relu"}


class Killed(BaseException):
    """Nothing of ours catches it, as nothing catches SIGKILL."""


class Clock:
    """Seconds that pass only when a pretended run is carried out."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def settings_of(words):
    """`--learning-rate=0.1` → {"learning_rate": "0.1"}."""
    pairs = [word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and "=" in word]
    return {name.replace("-", "_"): value for name, value in pairs}


def noise(words, spread):
    """The same for the same command, between −1 and 1 times the spread."""
    digest = hashlib.sha256(" ".join(words).encode()).digest()
    return spread * (int.from_bytes(digest[:4]) / 2**31 - 1)


def peak(settings):
    """A return that is 0 at a learning rate of 0.003, and lower elsewhere; 3e-4 gets −10."""
    return -10.0 * (math.log10(float(settings.get("learning_rate", 3e-4))) + 2.523) ** 2


class PretendedPool:
    """Every command ends at the next poll with `score(settings)` and noise, unless `fails(settings)` says why not.

    `dies_after`: so many commands, then Killed. `stops_after`: so many, then a Ctrl-C.
    """

    def __init__(self, score=peak, spread=1.0, fails=lambda settings: "", clock=None, seconds=1.0, slots=2):
        self.score, self.spread, self.fails, self.slots = score, spread, fails, slots
        self.clock, self.seconds = clock, seconds
        self.commands, self.running, self.dies_after, self.interrupts_after = [], [], None, None
        self.stopped = False

    def submit(self, work):
        if self.dies_after is not None and len(self.commands) >= self.dies_after:
            raise Killed
        if self.interrupts_after is not None and len(self.commands) >= self.interrupts_after:
            self.interrupts_after, self.stopped = None, True
            os.kill(os.getpid(), 2)
        self.commands.append(work.words)
        self.running.append(work)

    def poll(self, seconds):
        ended, self.running = self.running, []
        if self.clock is not None:
            self.clock.now += self.seconds if ended else seconds
        return [self._end(work) for work in ended]

    def _end(self, work):
        folder = work.output.parent
        folder.mkdir(parents=True, exist_ok=True)
        if work.words[0] == "resume":
            words = json.loads((folder / "manifest.json").read_text())["words"]
        else:
            words = [word for word in work.words if not word.startswith("--run-dir")]
        settings = settings_of(words)
        why = self.fails(settings)
        state = "interrupted" if self.stopped else "failed" if why else "done"
        status = {"state": state, "step": int(settings["total_steps"])}
        if state == "done":
            status["eval_return"] = self.score(settings) + noise(words, self.spread)
        work.output.write_text(f"surefoot: {why}\n")
        (folder / "config.toml").write_text(f"seed = {settings['seed']}\n")
        (folder / "manifest.json").write_text(json.dumps({"words": words}))
        (folder / "status.json").write_text(json.dumps(status))
        return Ended(work.name, 1 if why else 0)

    def stop(self, *, at_once=False):
        self.stopped = True

    def save(self):
        self.saved = True

    def close(self):
        self.stopped = False


def a_wish(**changes):
    wish = {
        "env": "CartPole-v1", "algo": "ppo", "total_steps": 18_000, "settings": {}, "search": SEARCH, "seeds": 3,
        "validation_seeds": 5, "seed": 0, "budget": "20-trials",
    }  # fmt: skip
    return Wish(**{**wish, **changes})


def pretend(pool, wish=None, place="tune", said=None):
    """Carry out a tune, or continue it."""
    wish = wish or a_wish()
    folder = TuneFolder(Path(place))
    held = folder.hold()
    try:
        folder.remember(wish)
        stopwatch = Stopwatch(folder.stopwatch)
        pool.stopped = False
        runner = TrialRunner(lambda: pool, Silent, stopwatch, flags=(), again=folder.again)
        say = said.append if said is not None else lambda line: None
        try:
            return carry_out_tune(folder, make_task(wish), parse_budget(wish.budget), runner, stopwatch, say)
        finally:
            runner.close()
    finally:
        held.release()
