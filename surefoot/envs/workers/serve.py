"""The worker's main loop: the slice of envs that it steps, and the requests that it answers."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import mmap
import os
import random
import signal
import socket
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.envs.config import EnvConfig
from surefoot.envs.gym_envs import GymEnvs, SeededEpisodes
from surefoot.envs.make import make_env
from surefoot.envs.random_play import Player
from surefoot.envs.seeds import derive_seed
from surefoot.envs.workers.acting import Acting
from surefoot.envs.workers.memory import COUNTS, IDLE, RESETTING, STEPPING, Field, map_fields, read_actions
from surefoot.envs.workers.messages import decode, frame
from surefoot.errors import SurefootError, user_errors
from surefoot.kernels.library import NotBuilt
from surefoot.spaces.as_json import space_to_json

if TYPE_CHECKING:
    from surefoot.envs.workers.acting import Equipment
    from surefoot.envs.workers.messages import Beyond, Described, Problem
    from surefoot.types import Array, GymEnv, GymStep, Info


FOR_THE_PARENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)


class CountedEpisodes(SeededEpisodes):
    """Records episode, step and phase before each call, so that the parent can tell what a crashed worker was doing."""

    def __init__(self, env: GymEnv, run_seed: int, env_index: int, counts: memoryview) -> None:
        super().__init__(env, run_seed, env_index)
        self.counts, self.at = counts, COUNTS * env_index

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[object, Info]:
        counts, at = self.counts, self.at
        counts[at], counts[at + 1], counts[at + 2] = self.episode + 1, 0, RESETTING
        result = super().reset(seed=seed, options=options)
        counts[at + 2] = IDLE
        return result

    def step(self, action: object) -> GymStep:
        counts, at = self.counts, self.at
        counts[at + 1], counts[at + 2] = self.steps + 1, STEPPING
        result = super().step(action)
        counts[at + 2] = IDLE
        return result


class EnvSlice(GymEnvs):
    """Envs `first` to `first + count` of a run, or of a process of it that has `before` envs before its own."""

    def __init__(
        self, config: EnvConfig, first: int, count: int, run_seed: int, counts: memoryview, before: int = 0
    ) -> None:
        self.first, self.before, self.counts = first, before, counts
        self.block: dict[str, Array] = {}
        self.acting: Acting | None = None
        super().__init__(lambda: make_env(config), count, run_seed)

    def _prepare(self, first: SeededEpisodes) -> None:
        self.envs = [
            CountedEpisodes(env.env, env.run_seed, self.before + self.first + index, self.counts)
            for index, env in enumerate(self.envs)
        ]
        super()._prepare(self.envs[0])

    def describe(self) -> Described:
        return {
            "observation_space": json.dumps(space_to_json(self.observation_space)),
            "action_space": json.dumps(space_to_json(self.action_space)),
            "mask_size": self.layout.mask_size,
            "time_limit": self.time_limit,
            "render_modes": list(self.render_modes),
        }

    def attach(self, fd: int, fields: Sequence[Field]) -> None:
        own = slice(self.first, self.first + self.num_envs)
        self.block = {name: array[own] for name, array in map_fields(fd, fields).items()}
        self._obs = self.block["obs"]
        self._actions = [array for name, array in self.block.items() if name.startswith("action")]

    def begin(self, episodes: Sequence[int]) -> None:
        """Reset to the episodes with these numbers."""
        for env, episode in zip(self.envs, episodes, strict=True):
            env.episode = episode - 1
        self._begun = None
        self.reset()

    def step_block(self, *, all_active: bool) -> Beyond | None:
        """One step with the block's actions. Returns what does not fit into the block, if anything."""
        block = self.block
        actions = read_actions(self.action_space, self._actions)
        step = self.step(actions, None if all_active else block["active"].copy())
        block["reward"][:], block["terminated"][:], block["truncated"][:] = step.reward, step.terminated, step.truncated
        block["life_lost"][:] = False if step.life_lost is None else step.life_lost
        block["has_final"][:] = False
        odd: dict[int, Array] = {}
        for index, row in step.final_obs.items():
            if row.dtype == block["final"].dtype:
                block["final"][index] = row
            else:
                odd[self.first + index] = row
            block["has_final"][index] = True
        infos = {self.first + index: info for index, info in step.final_info.items() if info}
        return {"infos": infos, "finals": odd} if infos or odd else None


def serve(channel: int, memory: int, crash: int, parent: int, watch: int) -> None:
    """Answer requests until the parent says stop or is gone. The first three arguments are open file descriptors."""
    _die_with(parent, watch=bool(watch))
    for fd in (channel, memory, crash):
        os.set_inheritable(fd, False)
    # Ctrl-C, SIGTERM and a scheduler's warning may reach every process of a job; the parent decides what to do.
    # No-op handlers, not SIG_IGN, which the env's child processes would inherit.
    for number in FOR_THE_PARENT:
        signal.signal(number, lambda *_: None)
    os.register_at_fork(after_in_child=_default_signals)
    faulthandler.enable(crash)
    faulthandler.register(signal.SIGUSR1, crash)
    counts = memoryview(mmap.mmap(memory, 0)).cast("q")
    with socket.socket(fileno=channel) as sock, suppress(BrokenPipeError, ConnectionResetError):
        _answer(sock, counts, memory)


def _default_signals() -> None:
    for number in FOR_THE_PARENT:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _die_with(parent: int, *, watch: bool) -> None:
    """End with the parent. PR_SET_PDEATHSIG fires when the *thread* that started us ends, so `watch` polls instead."""
    if watch or ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0) != 0:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def _answer(sock: socket.socket, counts: memoryview, memory: int) -> None:
    envs: EnvSlice | None = None
    while (tag := sock.recv(1)) not in (b"", b"q"):
        result: object = None
        try:
            if envs is not None and tag in (b"s", b"m"):  # the hot path
                result = envs.step_block(all_active=tag == b"s")
            else:
                request = decode(json.loads(_receive(sock, int.from_bytes(_receive(sock, 8), "little"))))
                if envs is None:
                    _seed_generators(request["run_seed"], request["before"] + request["first"])
                    config = EnvConfig(**request["config"])
                    sizes = request["first"], request["count"]
                    envs = EnvSlice(config, *sizes, request["run_seed"], counts, request["before"])
                    result = envs.describe()
                else:
                    result = _serve_rare(envs, request, memory)
            reply = frame(b"o", result)
        except user_errors() as error:
            reply = frame(b"e", _as_message(error))
        sock.sendall(reply)
    if envs is not None:
        try:
            envs.close()
        except user_errors() as error:
            with suppress(OSError):
                sock.sendall(frame(b"c", _as_message(error)))


def _seed_generators(run_seed: int, first: int) -> None:
    """For envs that use the global generators: the same numbers in every run with the same number of workers."""
    random.seed(derive_seed(run_seed, "worker", first, "python"))
    np.random.seed(derive_seed(run_seed, "worker", first, "numpy"))


def _serve_rare(envs: EnvSlice, request: dict[str, Any], memory: int) -> object:
    match request["do"]:
        case "attach":
            envs.attach(memory, [(name, tuple(shape), dtype) for name, shape, dtype in request["fields"]])
        case "reset":
            envs.reset()
        case "begin":
            envs.begin(request["episodes"])
        case "equip":
            return _equip(envs, request["equipment"], memory)
        case "rollout":
            assert envs.acting is not None
            return envs.acting.play(request["first"])
        case "save":
            return envs.state_dict()
        case "play":
            return Player(envs, request["seed"]).rate(request["seconds"])
        case "load":
            return {"lost": envs.load_state_dict(request["state"], request["last_obs"])}
    return None


def _equip(envs: EnvSlice, equipment: Equipment, memory: int) -> object:
    """Nothing, or why this process cannot act."""
    try:
        envs.acting = Acting(envs, memory, equipment)
    except (NotBuilt, OSError, MemoryError) as reason:
        return {"why": str(reason)}
    return None


def _receive(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = sock.recv(min(size - len(data), 1 << 20))
        if not chunk:
            os._exit(1)  # the parent is gone
        data += chunk
    return bytes(data)


def _as_message(error: BaseException) -> Problem:
    """The error, and the traceback in the env's code (or in ours, if the env is not to blame)."""
    cause = error.__cause__ or (None if isinstance(error, SurefootError) else error)
    kind = type(error).__name__ if isinstance(error, SurefootError) else ""
    text = str(error) if kind else f"an env worker raised {type(error).__name__}: {error}"
    shown = "" if cause is None else "".join(traceback.format_exception(cause, chain=False)).rstrip()
    return {"kind": kind, "message": text, "traceback": shown, "notes": list(getattr(error, "__notes__", ()))}
