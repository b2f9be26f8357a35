"""N environments in K processes of their own: the same bytes as `GymEnvs`, but a crash or a hang is only an error.

A worker is a fresh interpreter (no fork: it inherits no lock, no thread, no torch, and does not run the user's script
again) that steps a slice of the envs with `GymEnvs` itself. Numbers travel through one block of shared memory, which
has no name and so cannot be left behind; per step and worker, one byte goes each way over a socket. Rare things (infos
at the end of episodes, errors, states) follow that byte as JSON, so nothing is ever unpickled.
"""

from __future__ import annotations

import base64
import ctypes
import faulthandler
import json
import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from surefoot import errors
from surefoot.envs.config import EnvConfig
from surefoot.envs.gym_envs import GymEnvs, SeededEpisodes
from surefoot.envs.make import make_env
from surefoot.envs.seeds import derive_seed, episode_seed
from surefoot.errors import EnvError, SurefootError, UsageError
from surefoot.spaces.as_json import space_from_json, space_to_json
from surefoot.spaces.layout import Layout
from surefoot.types import Step

if TYPE_CHECKING:
    from surefoot.types import Array

START_TIMEOUT = 60.0  # at least, for a worker to import and make its envs
CLOSE_TIMEOUT = 2.0  # for all of them to close their envs; then they are killed
MOST_NAMED = 16  # envs that an error lists
IDLE, STEPPING, RESETTING = 0, 1, 2  # what a worker does with an env now
COUNTS = 3  # numbers kept of each env: episode, step, one of the above

# The worker must find the same packages before it can import anything of ours.
BOOT = "import sys; a = sys.argv[1:7]; sys.path[:] = sys.argv[7:]; del sys.argv[1:]; "
BOOT += "from surefoot.envs.workers import serve; serve(*map(int, a))"


# --- what both sides know: messages and memory ------------------------------------------------------------------------


def encode(value: Any, *, strict: bool = False, depth: int = 0) -> Any:
    """JSON that `decode` turns back into the same plain data and arrays. Anything else: its repr, or TypeError."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind not in "OV":
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": [value.dtype.str, list(value.shape), data, isinstance(value, np.generic)]}
    if depth < 50 and type(value) in (list, tuple):
        items = [encode(item, strict=strict, depth=depth + 1) for item in value]
        return items if type(value) is list else {"tuple": items}
    if depth < 50 and isinstance(value, dict):
        pairs = ((encode(key, strict=strict, depth=depth + 1), item) for key, item in value.items())
        return {"dict": [[key, encode(item, strict=strict, depth=depth + 1)] for key, item in pairs]}
    if strict:
        raise TypeError(f"{value!r} is a {type(value).__name__}")
    return repr(value)


def decode(data: Any) -> Any:
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind == "tuple":
        return tuple(decode(item) for item in content)
    if kind == "dict":
        return {decode(key): decode(item) for key, item in content}
    dtype, shape, text, scalar = content
    array = np.frombuffer(base64.b64decode(text), dtype).reshape(shape).copy()
    return array[()] if scalar else array


def frame(tag: bytes, value: Any = None) -> bytes:
    """A byte that says what it is, and what belongs to it, if anything does."""
    if value is None:
        return tag.lower()
    body = json.dumps(encode(value)).encode()
    return tag.upper() + len(body).to_bytes(8, "little") + body


def action_parts(space: spaces.Space[Any], path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(where it stands in an action, the simple space there), depth first."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in inner:
            yield from action_parts(part, (*path, key))
    else:
        yield path, space


def part_at(action: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        action = action[key]
    return action


def join_parts(space: spaces.Space[Any], parts: Iterator[Any], index: int) -> Any:
    """The action of one env from the arrays of all, as the policy's own action model would hand it out."""
    if isinstance(space, spaces.Dict):
        return {key: join_parts(part, parts, index) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(join_parts(part, parts, index) for part in space.spaces)
    array = next(parts)
    return array[index] if isinstance(space, spaces.Discrete) else array[index, ...]


def fill(array: Array, action: Any) -> None:
    """Actions into their place. What has another shape, or would lose its fraction, is refused."""
    value = np.asarray(action)
    if value.shape != array.shape:
        raise UsageError(f"the actions have the shape {value.shape}; the envs take {array.shape}")
    np.copyto(array, value, casting="unsafe" if value.dtype.kind in "iub" else "same_kind")


Field = tuple[str, tuple[int, ...], str]  # name, shape, dtype


def block_fields(layout: Layout, action_space: spaces.Space[Any], num_envs: int) -> list[Field]:
    rows = layout.space.dtype if layout.plain else layout.dtype
    row = ((num_envs, *layout.shape), np.dtype(rows).str)
    flags = [(name, (num_envs,), "|b1") for name in ("terminated", "truncated", "active", "has_final")]
    actions = [
        (f"action{k}", (num_envs, *part.shape), np.dtype(part.dtype).str)
        for k, (_, part) in enumerate(action_parts(action_space))
    ]
    return [("obs", *row), ("final", *row), ("reward", (num_envs,), "<f8"), *flags, *actions]


def map_block(fd: int, fields: Sequence[Field], *, create: bool = False) -> dict[str, Array]:
    """The arrays of a block. They keep the mapping alive; the last one to go unmaps it."""
    places, size = [], 0
    for _, shape, dtype in fields:
        places.append(size)
        size += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // 64) * 64
    if create:
        os.ftruncate(fd, size)
    memory = mmap.mmap(fd, size)
    return {
        name: np.ndarray(shape, np.dtype(dtype), memory, place)
        for (name, shape, dtype), place in zip(fields, places, strict=True)
    }


# --- in a worker ------------------------------------------------------------------------------------------------------


class CountedEpisodes(SeededEpisodes):
    """Writes down what it is about to do where the parent can read it when that turns out to be the last thing."""

    def __init__(self, env: gym.Env[Any, Any], run_seed: int, env_index: int, counts: memoryview) -> None:
        super().__init__(env, run_seed, env_index)
        self.counts, self.at = counts, COUNTS * env_index

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        counts, at = self.counts, self.at
        counts[at], counts[at + 1], counts[at + 2] = self.episode + 1, 0, RESETTING
        result = super().reset(seed=seed, options=options)
        counts[at + 2] = IDLE
        return result

    def step(self, action: Any) -> Any:
        counts, at = self.counts, self.at
        counts[at + 1], counts[at + 2] = self.steps + 1, STEPPING
        result = super().step(action)
        counts[at + 2] = IDLE
        return result


class EnvSlice(GymEnvs):
    """Envs `first` to `first + count` of a run."""

    def __init__(self, config: EnvConfig, first: int, count: int, run_seed: int, counts: memoryview) -> None:
        self.first, self.counts = first, counts
        self.block: dict[str, Array] = {}
        super().__init__(lambda: make_env(config), count, run_seed)

    def _prepare(self, first: SeededEpisodes) -> None:
        self.envs = [
            CountedEpisodes(env.env, env.run_seed, self.first + index, self.counts)
            for index, env in enumerate(self.envs)
        ]
        super()._prepare(self.envs[0])

    def describe(self) -> dict[str, Any]:
        return {
            "observation_space": json.dumps(space_to_json(self.observation_space)),
            "action_space": json.dumps(space_to_json(self.action_space)),
            "mask_size": self.layout.mask_size,
            "time_limit": self.time_limit,
        }

    def attach(self, fd: int, fields: Sequence[Field]) -> None:
        own = slice(self.first, self.first + self.num_envs)
        self.block = {name: array[own] for name, array in map_block(fd, fields).items()}
        self._obs = self.block["obs"]
        self._actions = [array for name, array in self.block.items() if name.startswith("action")]

    def begin(self, episodes: Sequence[int]) -> None:
        """Reset to episodes of these numbers."""
        for env, episode in zip(self.envs, episodes, strict=True):
            env.episode = episode - 1
        self._begun = None
        self.reset()

    def step_block(self, *, all_active: bool) -> dict[str, Any] | None:
        """One step with the block's actions; what does not fit into the block, if anything."""
        block = self.block
        # A copy, for an env may keep the action that it was given.
        parts = [array.copy() for array in self._actions]
        plain = not isinstance(self.action_space, (spaces.Dict, spaces.Tuple))
        actions = parts[0] if plain else [join_parts(self.action_space, iter(parts), i) for i in range(self.num_envs)]
        step = self.step(actions, None if all_active else block["active"].copy())
        block["reward"][:], block["terminated"][:], block["truncated"][:] = step.reward, step.terminated, step.truncated
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


def serve(channel: int, counts_fd: int, block_fd: int, crash_fd: int, parent: int, watch: int) -> None:
    """A worker's life: one request after the other until the parent says so, or is gone."""
    _die_with(parent, watch=bool(watch))
    for fd in (channel, counts_fd, block_fd, crash_fd):
        os.set_inheritable(fd, False)
    # Ctrl-C and a polite kill are for the parent to decide on. No-op handlers, not SIG_IGN: what an env starts would
    # inherit that.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    os.register_at_fork(after_in_child=_default_signals)
    faulthandler.enable(crash_fd)
    faulthandler.register(signal.SIGUSR1, crash_fd)
    counts = memoryview(mmap.mmap(counts_fd, 0)).cast("q")
    with socket.socket(fileno=channel) as sock, suppress(BrokenPipeError, ConnectionResetError):
        _answer(sock, counts, block_fd)


def _default_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _die_with(parent: int, *, watch: bool) -> None:
    """PR_SET_PDEATHSIG fires when the *thread* that started us ends, so off the main thread we look ourselves."""
    if watch or ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0) != 0:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def _answer(sock: socket.socket, counts: memoryview, block_fd: int) -> None:
    envs: EnvSlice | None = None
    while tag := sock.recv(1):
        result: Any = None
        try:
            if tag == b"s":  # the hot path
                assert envs is not None
                result = envs.step_block(all_active=True)
            elif tag == b"m":
                assert envs is not None
                result = envs.step_block(all_active=False)
            elif tag == b"q":
                break
            else:
                request = decode(json.loads(_receive(sock, int.from_bytes(_receive(sock, 8), "little"))))
                if tag == b"N":
                    _seed_generators(request["run_seed"], request["first"])
                    config = EnvConfig(**request["config"])
                    envs = EnvSlice(config, request["first"], request["count"], request["run_seed"], counts)
                    result = envs.describe()
                else:
                    assert envs is not None
                    result = _serve_rare(envs, request, block_fd)
            reply = frame(b"o", result)
        except Exception as error:
            reply = frame(b"e", _as_message(error))
        sock.sendall(reply)
    if envs is not None:
        try:
            envs.close()
        except Exception as error:
            with suppress(OSError):
                sock.sendall(frame(b"c", _as_message(error)))


def _seed_generators(run_seed: int, first: int) -> None:
    """For envs that draw from the global ones: the same numbers in every run with as many workers."""
    random.seed(derive_seed(run_seed, "worker", first, "python"))
    np.random.seed(derive_seed(run_seed, "worker", first, "numpy"))


def _serve_rare(envs: EnvSlice, request: dict[str, Any], block_fd: int) -> Any:
    match request["do"]:
        case "attach":
            envs.attach(block_fd, [(name, tuple(shape), dtype) for name, shape, dtype in request["fields"]])
        case "reset":
            envs.reset()
        case "begin":
            envs.begin(request["episodes"])
        case "save":
            return envs.state_dict()
        case "load":
            return {"lost": envs.load_state_dict(request["state"], request["last_obs"])}
    return None


def _receive(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = sock.recv(min(size - len(data), 1 << 20))
        if not chunk:
            os._exit(1)  # the parent is gone
        data += chunk
    return bytes(data)


def _as_message(error: Exception) -> dict[str, Any]:
    """The error, and the traceback of what the env did wrong (or of ours, where it did nothing)."""
    cause = error.__cause__ or (None if isinstance(error, SurefootError) else error)
    kind = type(error).__name__ if isinstance(error, SurefootError) else ""
    text = str(error) if kind else f"an env worker raised {type(error).__name__}: {error}"
    shown = "" if cause is None else "".join(traceback.format_exception(cause, chain=False)).rstrip()
    return {"kind": kind, "message": text, "traceback": shown, "notes": list(getattr(error, "__notes__", ()))}


# --- in the parent ----------------------------------------------------------------------------------------------------


class Lost(Exception):
    """A worker is dead or does not answer. `.trace`: where it was, as far as it could still say."""

    def __init__(self, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.trace = trace


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended itself with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = " (did the machine run out of memory?)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


class Worker:
    """One process, its socket, and the deadline of its replies: `timeout` seconds without any progress."""

    def __init__(self, number: int, envs: range, timeout: float, counts: memoryview, fds: tuple[int, int]) -> None:
        self.number, self.envs, self.timeout, self.fds = number, envs, timeout, fds
        self.counts = counts[COUNTS * envs.start : COUNTS * envs.stop]
        self.process: subprocess.Popen[bytes] | None = None
        self.awaited = False  # a reply is
        self.lost: Lost | None = None  # why there is no process

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        self.crash = os.memfd_create("surefoot-crash")
        self.sock, self.buffer, self.awaited, self.lost = ours, bytearray(), False, None
        ours.settimeout(min(0.25, self.timeout / 4))
        for at in range(len(self.counts)):
            self.counts[at] = -1 if at % COUNTS == 0 else 0
        passed = (theirs.fileno(), *self.fds, self.crash)
        watch = int(threading.current_thread() is not threading.main_thread())
        command = [sys.executable, "-P", "-c", BOOT, *map(str, (*passed, os.getpid(), watch)), *sys.path]
        try:
            # A session of its own: Ctrl-C and Ctrl-Z at the terminal do not reach it, and what it starts ends with it.
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=passed, start_new_session=True)
        except BaseException as error:
            ours.close()
            os.close(self.crash)
            if isinstance(error, OSError):
                raise EnvError(f"env worker {self.number} could not be started: {error}") from error
            raise
        finally:
            theirs.close()

    def send(self, message: bytes, timeout: float | None = None) -> None:
        self.patience = self.timeout if timeout is None else timeout
        self.progress, self.deadline = bytes(self.counts), time.monotonic() + self.patience
        self.awaited = True
        view = memoryview(message)
        while view:
            try:
                view = view[self.sock.send(view) :]
            except TimeoutError:
                self._still_there()
            except (BrokenPipeError, ConnectionResetError):
                raise self._died() from None

    def receive(self) -> tuple[bytes, Any]:
        """(tag, value) of the reply. Lost if the worker is."""
        # Taken from the buffer when it is whole: a signal's handler may raise in between.
        self._fill(1)
        tag, size, value = bytes(self.buffer[:1]), 1, None
        if tag.isupper():
            self._fill(9)
            size = 9 + int.from_bytes(self.buffer[1:9], "little")
            self._fill(size)
            value = decode(json.loads(self.buffer[9:size]))
        self.awaited = False
        del self.buffer[:size]
        return tag.lower(), value

    def _fill(self, size: int) -> None:
        while len(self.buffer) < size:
            try:
                chunk = self.sock.recv(4096 if size < 4096 else 1 << 20)
            except TimeoutError:
                self._still_there()
                continue
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                raise self._died()
            self.buffer += chunk

    def _still_there(self) -> None:
        if self._exited():  # and something that it left behind holds its socket open
            raise self._died()
        now, progress = time.monotonic(), bytes(self.counts)
        if self.patience and progress != self.progress:
            self.progress, self.deadline = progress, now + self.patience
        elif now > self.deadline:
            raise self._hangs()

    def _exited(self) -> bool:
        """Without reaping it: its process group must stay ours until it is killed."""
        assert self.process is not None
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _died(self) -> Lost:
        until = time.monotonic() + 1.0
        while not self._exited() and time.monotonic() < until:
            time.sleep(0.005)
        exited, trace = self._exited(), self._trace()
        code = self.end()
        self.lost = Lost(_how_it_ended(code) if exited else "closed its connection", trace)
        return self.lost

    def _hangs(self) -> Lost:
        assert self.process is not None
        until = time.monotonic()
        if self.patience:
            self.process.send_signal(signal.SIGUSR1)  # it writes down where it is, if it is still able to
            until += 0.5
        while not self._trace() and not self._exited() and time.monotonic() < until:
            time.sleep(0.01)
        trace = self._trace()
        self.end()
        self.lost = Lost(f"did not answer within {self.patience:g} s (--env-timeout)", trace)
        return self.lost

    def _trace(self) -> str:
        text = os.pread(self.crash, 20_000, 0).decode(errors="replace")
        return text.partition("\nExtension modules:")[0]

    def end(self) -> int:
        """Kill it and whatever it started; its exit code. Does nothing the second time."""
        process, self.process = self.process, None
        if process is None:
            return 0
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        self.sock.close()
        os.close(self.crash)
        return code

    def quit(self) -> None:
        with suppress(OSError):
            if self.process is not None:
                self.sock.send(b"q")

    def left(self, deadline: float) -> Any:
        """Wait for it to end by itself, and see to it. The error of closing its envs, if there was one."""
        problem = None
        if self.process is not None:
            self.patience, self.deadline, self.progress = 0.0, deadline, bytes(self.counts)
            with suppress(Lost):  # which it is supposed to be
                while True:
                    tag, value = self.receive()
                    problem = value if tag == b"c" else problem
        self.end()
        return problem


def _end_all(workers: Sequence[Worker], fds: Sequence[int], owner: int) -> None:
    if os.getpid() != owner:  # a fork of it
        return
    for worker in workers:
        worker.end()
    for fd in fds:
        os.close(fd)


class WorkerEnvs:
    """As `GymEnvs`, in `workers` processes.

    `timeout`: seconds that a step, a reset or a start may go without progress. `restarts`: how many dead or hung
    workers are replaced, all in all; their open episodes are cut: truncated at the last observation that was seen, by
    a step that is no transition (`valid` False), for nobody knows what the action did. `notice` is told of each.
    """

    exact_seeds, batched_actions = True, False

    def __init__(
        self,
        config: EnvConfig,
        num_envs: int,
        run_seed: int,
        workers: int,
        *,
        timeout: float = 60.0,
        restarts: int = 0,
        factory: object = None,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        if factory is not None or not config.env:
            raise UsageError("workers need an env by id or file.py:Factory: another process cannot be given a function")
        self._config = {field.name: getattr(config, field.name) for field in fields(config)}
        try:
            encode(self._config, strict=True)
        except TypeError as error:
            raise UsageError(f"workers need env_kwargs of plain data, to hand to another process: {error}") from None
        self.config, self.num_envs, self.run_seed = config, num_envs, run_seed
        self.timeout, self.restarts, self.notice = timeout, restarts, notice
        self.restarted = 0
        self._error: EnvError | None = None
        self._described: dict[str, Any] | None = None
        self._fields: list[Field] = []
        self.workers: list[Worker] = []
        self._block: dict[str, Array] = {}
        self._action: list[tuple[tuple[Any, ...], Array]] = []
        self._counts = memoryview(b"")
        self._fds = (os.memfd_create("surefoot-counts"), os.memfd_create("surefoot-envs"))
        # Also when nobody closes them: at the latest when the program ends.
        self._abandon = weakref.finalize(self, _end_all, self.workers, self._fds, os.getpid())
        try:
            self._start(max(1, min(workers, num_envs)))
        except BaseException:
            self._kill()
            raise

    # starting and ending

    def _start(self, count: int) -> None:
        os.ftruncate(self._fds[0], 8 * COUNTS * self.num_envs)
        self._counts = memoryview(mmap.mmap(self._fds[0], 0)).cast("q")
        edges = [self.num_envs * k // count for k in range(count + 1)]
        for number in range(count):
            envs = range(edges[number], edges[number + 1])
            self.workers.append(Worker(number, envs, self.timeout, self._counts, self._fds))
        for worker in self.workers:
            self._launch(worker)
        for worker in self.workers:
            try:
                self._meet(worker)
            except Lost as lost:
                raise self._gone(worker, lost, "starting") from None

    def _launch(self, worker: Worker) -> None:
        worker.start()
        order = {"config": self._config, "first": worker.envs.start, "count": len(worker.envs)}
        with suppress(Lost):  # which the reply will say as well
            worker.send(frame(b"n", order | {"run_seed": self.run_seed}), max(self.timeout, START_TIMEOUT))

    def _meet(self, worker: Worker) -> None:
        """Its envs are made: see that they are like the others, and give it its part of the memory."""
        if worker.process is None:
            raise worker.lost or Lost("is not there")
        described = self._reply(worker)
        if self._described is None:
            self._prepare(described)
        elif described != self._described:
            what = next(key for key in described if described[key] != self._described[key])
            raise EnvError(
                f"the envs differ: {what} of env {worker.envs.start} is {described[what]}, "
                f"of env 0 {self._described[what]}"
            )
        worker.send(frame(b"x", {"do": "attach", "fields": self._fields}))
        self._reply(worker)

    def _prepare(self, described: dict[str, Any]) -> None:
        self._described = described
        self.observation_space = space_from_json(json.loads(described["observation_space"]))
        self.action_space = space_from_json(json.loads(described["action_space"]))
        self.time_limit: int | None = described["time_limit"]
        self.layout = Layout(self.observation_space, described["mask_size"])
        self._fields = block_fields(self.layout, self.action_space, self.num_envs)
        self._block = map_block(self._fds[1], self._fields, create=True)
        self._action = [
            (path, self._block[f"action{k}"]) for k, (path, _) in enumerate(action_parts(self.action_space))
        ]
        self._seen = self._block["obs"].copy()  # what was last handed out

    def close(self) -> None:
        """Every env; the first error of theirs comes when all are closed. A worker that will not end is killed."""
        deadline = time.monotonic() + CLOSE_TIMEOUT
        problems = []
        try:
            for worker in self.workers:
                worker.quit()
            problems = [problem for worker in self.workers if (problem := worker.left(deadline)) is not None]
        finally:
            self._kill()
        if problems:
            raise self._raised(problems[0])

    def _kill(self) -> None:
        self._abandon()
        # Without these nothing holds the memory any more; the last observations may still be asked for.
        self._block = {name: array.copy() for name, array in self._block.items() if name == "obs"}
        self._action.clear()
        self._counts = memoryview(b"")
        for worker in self.workers:
            worker.counts = self._counts

    # asking

    def _reply(self, worker: Worker) -> Any:
        tag, value = worker.receive()
        if tag == b"e":
            raise self._raised(value)
        return value

    def _raised(self, message: dict[str, Any]) -> SurefootError:
        """The worker's error, as it would have been here."""
        text = message["message"]
        if text.startswith("unknown environment") and self.config.env in gym.envs.registration.registry:
            text = f"{self.config.env!r} was registered in this process only; for workers, name it module:Id"
        error: SurefootError = getattr(errors, message["kind"], EnvError)(text)
        for note in message["notes"]:
            error.add_note(note)
        if message["traceback"]:
            error.add_note(message["traceback"])
        return error

    def _ask(self, messages: Sequence[bytes]) -> tuple[list[Any], dict[Worker, Lost]]:
        """The replies of all workers, and the workers that were lost over it. The first env's error, if one raised."""
        if self._error is not None:
            raise self._error
        if not self._abandon.alive:
            raise UsageError("the envs are closed")
        lost: dict[Worker, Lost] = {}
        for worker, message in zip(self.workers, messages, strict=True):
            try:
                if worker.process is None:
                    raise worker.lost or Lost("is not there")
                while worker.awaited:  # somebody interrupted us
                    worker.receive()
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

    def _all(self, order: dict[str, Any]) -> tuple[list[Any], dict[Worker, Lost]]:
        return self._ask([frame(b"x", order)] * len(self.workers))

    # what happens to a worker that is lost

    def _gone(self, worker: Worker, lost: Lost, doing: str) -> EnvError:
        """The error of a worker that is lost: which, how, and where each of its envs stood."""
        counts = self._counts
        states = {i: tuple(counts[COUNTS * i : COUNTS * (i + 1)]) for i in worker.envs}
        busy = next((i for i, (_, _, now) in states.items() if now != IDLE), None)
        if busy is not None:
            doing = f"{'step' if states[busy][2] == STEPPING else 'reset'} of env {busy}"
        where = [
            f"env {i} (seed {episode_seed(self.run_seed, i, episode)}, episode {episode}, step {step})"
            for i, (episode, step, _) in sorted(states.items(), key=lambda item: (item[0] != busy, item[0]))
            if episode >= 0
        ] or [f"env {i}" for i in states]
        more = f" and {len(where) - MOST_NAMED} more" if len(where) > MOST_NAMED else ""
        names = ", ".join(where[:MOST_NAMED]) + more
        error = EnvError(f"env worker {worker.number} of {self.config.env} {lost} in {doing}; it had {names}")
        if lost.trace:
            error.add_note(f"Where it was:\n{lost.trace.rstrip()}")
        return error

    def _spend(self, worker: Worker, lost: Lost, doing: str) -> None:
        """One restart of the budget, or the error."""
        error = self._gone(worker, lost, doing)
        worker.end()
        if self.restarted >= self.restarts:
            if self.restarts:
                error.add_note(f"{self.restarts} restarts (--restart-workers) were used up.")
            self._error = error
            raise error
        self.restarted += 1
        if self.notice is not None:
            self.notice(f"{error}; it is started again ({self.restarted} of {self.restarts})")

    def _revive(self, worker: Worker, lost: Lost, doing: str, keep: Array) -> None:
        """A new process, its envs at the start of their next episode (of the same one where `keep`)."""
        counts, at = self._counts, worker.envs.start
        self._spend(worker, lost, doing)
        episodes = [counts[COUNTS * i] + (0 if keep[i - at] else 1) for i in worker.envs]
        while True:
            try:
                self._launch(worker)
                self._meet(worker)
                worker.send(frame(b"x", {"do": "begin", "episodes": episodes}))
                self._reply(worker)
                return
            except Lost as error:
                self._spend(worker, error, "starting")
                episodes = [episode + 1 for episode in episodes]

    # the protocol of Envs

    def reset(self) -> Array:
        _, lost = self._all({"do": "reset"})
        for worker, error in lost.items():
            self._revive(worker, error, "reset", np.zeros(len(worker.envs), np.bool_))
        return self._handed_out()

    def step(self, action: Any, active: Array | None = None) -> Step:
        block = self._block
        for path, array in self._action:
            fill(array, [part_at(action[i], path) for i in range(self.num_envs)] if path else action)
        if active is not None:
            block["active"][:] = active
        replies, lost = self._ask([b"s" if active is None else b"m"] * len(self.workers))
        valid = np.ones(self.num_envs, np.bool_) if active is None else active.copy()
        final_obs: dict[int, Array] = {}
        final_info: dict[int, dict[str, Any]] = {}
        for worker, error in lost.items():
            self._cut(worker, error, active, final_obs)
        for index in np.flatnonzero(block["has_final"]).tolist():
            if index not in final_obs:
                final_obs[index] = block["final"][index, ...].copy()
            final_info[index] = {}
        for reply in replies:
            if reply is not None:
                final_obs |= reply["finals"]
                final_info |= reply["infos"]
        for worker in lost:
            valid[worker.envs.start : worker.envs.stop] = False
        final_obs, final_info = (dict(sorted(d.items())) for d in (final_obs, final_info))  # type: ignore[assignment]
        reward, terminated, truncated = (block[name].copy() for name in ("reward", "terminated", "truncated"))
        return Step(self._handed_out(), reward, terminated, truncated, valid, final_obs, final_info)

    def _cut(self, worker: Worker, error: Lost, active: Array | None, final_obs: dict[int, Array]) -> None:
        """Its envs stand at new episodes; those that were in one saw it truncated."""
        block, own = self._block, slice(worker.envs.start, worker.envs.stop)
        steps = np.array([self._counts[COUNTS * i + 1] for i in worker.envs])
        idle = np.zeros(len(worker.envs), np.bool_) if active is None else ~active[own] & (steps == 0)
        self._revive(worker, error, "step", idle)
        block["reward"][own], block["terminated"][own] = 0.0, False
        block["truncated"][own] = block["has_final"][own] = ~idle
        for index in np.flatnonzero(~idle).tolist():
            final_obs[own.start + index] = self._seen[own.start + index, ...].copy()

    def _handed_out(self) -> Array:
        obs = self._block["obs"].copy()
        if self.restarts:
            self._seen[...] = obs
        return obs

    @property
    def observations(self) -> Array:
        """What every env shows now."""
        return self._block["obs"].copy()

    # the protocol of Restorable

    def state_dict(self) -> dict[str, Any]:
        """As that of `GymEnvs`. The open episodes of a worker that is lost now cannot come back, and it says so."""
        replies, lost = self._all({"do": "save"})
        for worker, error in lost.items():
            if self.restarted >= self.restarts:
                self._spend(worker, error, "state_dict")
            # The next step will cut its episodes. One action too few: these cannot be replayed.
            counts = [tuple(self._counts[COUNTS * i : COUNTS * i + 2]) for i in worker.envs]
            replies[worker.number] = {
                "episode": [episode for episode, _ in counts],
                "steps": [max(steps, 1) for _, steps in counts],
                "actions": [None] * len(counts),
            }
        return {name: [x for reply in replies for x in reply[name]] for name in ("episode", "steps", "actions")}

    def load_state_dict(self, state: dict[str, Any], last_obs: Array) -> list[int]:
        """As that of `GymEnvs`."""
        messages = []
        for worker in self.workers:
            own = slice(worker.envs.start, worker.envs.stop)
            actions = [None if rows is None else np.asarray(rows) for rows in state["actions"][own]]
            part = {name: [int(x) for x in state[name][own]] for name in ("episode", "steps")} | {"actions": actions}
            messages.append(frame(b"x", {"do": "load", "state": part, "last_obs": np.asarray(last_obs[own])}))
        replies, lost = self._ask(messages)
        missing: list[int] = []
        for worker, reply in zip(self.workers, replies, strict=True):
            if worker in lost:
                self._revive(worker, lost[worker], "load_state_dict", np.zeros(len(worker.envs), np.bool_))
                missing += worker.envs
            else:
                missing += [worker.envs.start + index for index in reply["lost"]]
        self._handed_out()
        return missing
