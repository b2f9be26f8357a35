"""Whole rollouts in a worker: it acts with a copy of the policy's parameters, and exchanges nothing before the end.

The parent writes parameters and noise into the shared memory, and finds the steps there. What a step of a cheap env
costs is then what it costs in one process; a message for each would cost several times as much.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, TypedDict

from surefoot.envs.workers.memory import Field, map_fields
from surefoot.kernels.handle import Handle, Tables
from surefoot.kernels.library import NotBuilt, variant
from surefoot.kernels.stored import StoredActing
from surefoot.spaces.sending import sender

if TYPE_CHECKING:
    from collections.abc import Sequence

    from surefoot.envs.workers.serve import EnvSlice
    from surefoot.types import Array, Info, Step

PREFIX = "rollout."  # of the fields below


class Equipment(TypedDict):
    """What a worker needs to act: sent once."""

    fields: list[Field]  # of the whole shared memory
    tables: dict[str, object]  # `Tables` of the policy's network
    variant: str | None  # of the kernels
    bounds: str  # `action_bounds`
    normalized: bool


class Played(TypedDict):
    """What does not fit into the shared memory."""

    infos: list[tuple[int, int, Info]]  # (step, env, info) at the ends of episodes
    seconds: tuple[float, float]  # spent acting, and in the envs


def rollout_fields(
    length: int, num_envs: int, obs: tuple[int, ...], action: tuple[tuple[int, ...], str], numbers: tuple[int, int, int]
) -> list[Field]:
    """`obs`: shape of a row. `action`: shape and dtype as stored. `numbers`: params, noise and memory of an env."""
    each, (params, noise, memory) = (length, num_envs), numbers
    flags = ("terminated", "truncated", "life_lost", "valid")
    fields: list[Field] = [
        ("stop", (1,), "<i8"),  # not 0: end after the current step
        ("done", (num_envs,), "<i8"),  # steps that are complete, at the index of each worker's first env
        ("obs", (length + 1, num_envs, *obs), "<f4"),
        ("start", (length + 1, num_envs), "|b1"),
        ("action", (*each, *action[0]), action[1]),
        ("params", (*each, params), "<f4"),
        ("log_prob", each, "<f4"),
        ("reward", each, "<f8"),
        *((name, each, "|b1") for name in flags),
        ("noise", (*each, noise), "<f4"),
        ("memory", (num_envs, memory), "<f4"),
        # Written where an episode was truncated only; pages that nobody writes take no memory.
        ("final", (*each, *obs), "<f4"),
        ("final_memory", (*each, memory), "<f4"),
    ]
    return [(PREFIX + name, shape, dtype) for name, shape, dtype in fields]


def policy_fields(size: int, obs: tuple[int, ...]) -> list[Field]:
    """Parameters, and shift and scale of the observations' normaliser."""
    return [(PREFIX + "theta", (size,), "<f4"), (PREFIX + "scaling", (2, *obs), "<f4")]


def rollout_arrays(fd: int, fields: Sequence[Field], *, create: bool = False) -> dict[str, Array]:
    found = map_fields(fd, fields, create=create)
    return {name.removeprefix(PREFIX): array for name, array in found.items() if name.startswith(PREFIX)}


class Acting:
    """Plays the rollouts of a worker's envs."""

    def __init__(self, envs: EnvSlice, fd: int, equipment: Equipment) -> None:
        """Raises NotBuilt if this process cannot compute what its parent would."""
        tables = equipment["tables"]
        if (ours := variant()) != equipment["variant"]:
            raise NotBuilt(f"the worker has the kernels {ours}, and its parent {equipment['variant']}")
        self._envs, self._own = envs, slice(envs.first, envs.first + envs.num_envs)
        self._at = at = rollout_arrays(fd, equipment["fields"])
        self._net = Handle(Tables(**tables))  # type: ignore[arg-type]
        self._stored = StoredActing(self._net, at["obs"], at["params"], at["action"], at["log_prob"])
        remembers = self._net.remembered > 0
        self._memory = at["memory"] if remembers else None
        scaling = (at["scaling"][0], at["scaling"][1]) if equipment["normalized"] else None
        self._stored.begin(at["theta"], at["noise"], scaling, at["start"] if remembers else None, self._memory)
        self._send = sender(envs.action_space, equipment["bounds"])

    def play(self, first: int) -> Played:
        """The steps from `first` on, until the rollout is complete or the parent asks to stop."""
        at, envs, own, stored, send = self._at, self._envs, self._own, self._stored, self._send
        action, stop, done = at["action"], at["stop"], at["done"]
        infos: list[tuple[int, int, Info]] = []
        acting, begun = 0.0, perf_counter()
        for t in range(first, len(action)):
            if stop[0]:
                break
            start = perf_counter()
            stored.act(t, own)
            sent = send(action[t, own])
            acting += perf_counter() - start
            step = envs.step(sent)
            self._store(t, step)
            infos += [(t, own.start + index, info) for index, info in step.final_info.items() if info]
            done[own.start] = t + 1  # last: what is done can be read
        return {"infos": infos, "seconds": (acting, perf_counter() - begun - acting)}

    def _store(self, t: int, step: Step) -> None:
        at, own = self._at, self._own
        at["obs"][t + 1, own], at["reward"][t, own] = step.obs, step.reward
        at["terminated"][t, own], at["truncated"][t, own] = step.terminated, step.truncated
        at["start"][t + 1, own] = step.start
        at["life_lost"][t, own] = False if step.life_lost is None else step.life_lost
        for index, final in step.final_obs.items():
            if not step.terminated[index]:
                env = own.start + index
                at["final"][t, env] = final
                if self._memory is not None:
                    at["final_memory"][t, env] = self._memory[env]
