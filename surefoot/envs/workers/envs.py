"""`WorkerEnvs`: supervised workers behind the protocols of `Envs`, `SteppedInParts` and `Restorable`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from surefoot.envs.open_episodes import as_episodes, episodes_shape
from surefoot.envs.seeds import EpisodeSeeds
from surefoot.envs.workers.memory import action_parts, all_fields, map_fields, write_actions
from surefoot.envs.workers.messages import frame
from surefoot.envs.workers.supervisor import Supervisor
from surefoot.errors import UsageError
from surefoot.spaces.as_json import space_from_json
from surefoot.spaces.layout import Layout
from surefoot.types import Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from surefoot.envs.config import EnvConfig
    from surefoot.envs.open_episodes import EpisodesState
    from surefoot.envs.workers.messages import Beyond, Described
    from surefoot.envs.workers.process import Lost, Worker
    from surefoot.schema import Shape
    from surefoot.types import Actions, Array, Info


class WorkerEnvs:
    """Like `GymEnvs`, in `workers` processes.

    `timeout`: seconds that a step, a reset or a start may take without progress. `restarts`: total number of dead or
    hung workers to replace. Their open episodes are cut: truncated at the last observation seen, by a step that is not
    a transition (`valid` False), because the effect of the action is unknown. `notice` is called for each.
    """

    exact_seeds, batched_actions = True, False
    notes: tuple[str, ...] = ()
    num_agents = 1

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
        first: int = 0,
    ) -> None:
        """`first`: the index of the first env in the whole run, for the seeds."""
        if factory is not None or not config.env:
            raise UsageError("workers need an env by id or file.py:Factory: another process cannot be given a function")
        self.num_envs, count = num_envs, max(1, min(workers, num_envs))
        self._begun, self._seeds = False, EpisodeSeeds(run_seed, first)
        self.supervisor = Supervisor(
            config, num_envs, run_seed, count, timeout=timeout, restarts=restarts, notice=notice, first=first
        )
        try:
            assert self.supervisor.described is not None
            self._prepare(self.supervisor.described)
        except BaseException:
            self.supervisor.kill()
            raise

    def _prepare(self, described: Described) -> None:
        self.observation_space = space_from_json(json.loads(described["observation_space"]))
        self.action_space = space_from_json(json.loads(described["action_space"]))
        self.time_limit: int | None = described["time_limit"]
        self.render_modes = tuple(described["render_modes"])
        self.layout = Layout(self.observation_space, described["mask_size"])
        fields = all_fields(self.layout, self.action_space, self.num_envs)
        self._block = map_fields(self.supervisor.memory, fields, create=True)
        self._actions = [
            (path, self._block[f"action{k}"]) for k, (path, _) in enumerate(action_parts(self.action_space))
        ]
        self._seen = self._block["obs"].copy()  # the observations last returned
        self.parts = [slice(worker.envs.start, worker.envs.stop) for worker in self.supervisor.workers]
        self.supervisor.attach(fields)

    def close(self) -> None:
        """Close every env; the first error is raised when all are closed."""
        self.supervisor.close()

    def reset(self) -> Array:
        self._begun = True
        _, lost = self.supervisor.ask_all({"do": "reset"})
        for worker, error in lost.items():
            self.supervisor.revive(worker, error, "before its reset")
        return self._handed_out()

    def step(self, action: Actions, active: Array | None = None) -> Step:
        block = self._block
        write_actions(self._actions, action)
        if active is not None:
            block["active"][:] = active
        replies, lost = self.supervisor.ask([b"s" if active is None else b"m"] * len(self.supervisor.workers))
        valid = np.ones(self.num_envs, np.bool_) if active is None else active.copy()
        for worker, error in lost.items():
            self._cut(worker, error, active)
            valid[worker.envs.start : worker.envs.stop] = False
        return self._step(slice(0, self.num_envs), valid, replies)

    def send(self, part: int, action: Actions) -> None:
        own = self.parts[part]
        write_actions([(path, array[own]) for path, array in self._actions], action)
        self.supervisor.send(self.supervisor.workers[part], b"s")

    def answered(self) -> list[int]:
        return [worker.number for worker in self.supervisor.answered()]

    def take(self, part: int) -> Step:
        worker = self.supervisor.workers[part]
        reply, lost = self.supervisor.take(worker)
        if lost is not None:
            self._cut(worker, lost, None)
        return self._step(self.parts[part], np.full(len(worker.envs), lost is None), [reply])

    def _step(self, own: slice, valid: Array, replies: Sequence[Beyond | None]) -> Step:
        """The step of the envs in `own`."""
        block = {name: array[own] for name, array in self._block.items()}
        ended = np.flatnonzero(block["has_final"]).tolist()
        final_obs: dict[int, Array] = {index: block["final"][index, ...].copy() for index in ended}
        final_info: dict[int, Info] = {index: {} for index in ended}
        for reply in replies:
            if reply is not None:
                final_obs |= {index - own.start: row for index, row in reply["finals"].items()}
                final_info |= {index - own.start: info for index, info in reply["infos"].items()}
        reward, terminated, truncated = (block[name].copy() for name in ("reward", "terminated", "truncated"))
        life_lost = block["life_lost"].copy() if block["life_lost"].any() else None
        return Step(self._handed_out(own), reward, terminated, truncated, valid, final_obs, final_info, life_lost)

    def _cut(self, worker: Worker, error: Lost, active: Array | None) -> None:
        """The worker's envs are now at new episodes; mark the episodes that were open as truncated."""
        block, own = self._block, slice(worker.envs.start, worker.envs.stop)
        fresh = worker.counts[:, 1] == 0
        idle = np.zeros(len(worker.envs), np.bool_) if active is None else ~active[own] & fresh
        self.supervisor.revive(worker, error, "between two steps", idle.tolist())
        block["reward"][own] = block["terminated"][own] = block["life_lost"][own] = 0
        block["truncated"][own] = block["has_final"][own] = ~idle
        block["final"][own] = self._seen[own]

    def _handed_out(self, own: slice = slice(None)) -> Array:
        obs: Array = self._block["obs"][own].copy()
        if self.supervisor.restarts:
            self._seen[own] = obs
        return obs

    def seen(self) -> None:
        """The observations have been returned to whoever plays, otherwise than by `step`."""
        self._handed_out()

    def episode_numbers(self) -> list[int]:
        if not self._begun:  # some may have been reset to inspect them
            return [-1] * self.num_envs
        numbers: list[int] = self.supervisor.counts[:, 0].tolist()
        return numbers

    def episode_seeds(self, rows: Sequence[int], numbers: Sequence[int]) -> list[int]:
        return self._seeds.of(rows, numbers)

    @property
    def observations(self) -> Array:
        """What every env shows now."""
        return self._block["obs"].copy()

    def state_dict(self) -> EpisodesState:
        """See `GymEnvs.state_dict`. If a worker is lost now, the state marks its open episodes as not restorable."""
        replies, lost = self.supervisor.ask_all({"do": "save"})
        for worker, error in lost.items():
            if not self.supervisor.may_restart:
                self.supervisor.spend(worker, error, "between two steps")
            # The next step will cut its episodes. One action too few: these cannot be replayed.
            episodes, steps, _ = worker.counts.T.tolist()
            actions = [None] * len(episodes)
            replies[worker.number] = {"episode": episodes, "steps": [max(n, 1) for n in steps], "actions": actions}
        return as_episodes(
            {name: [x for reply in replies for x in reply[name]] for name in ("episode", "steps", "actions")}
        )

    def state_shape(self) -> Shape:
        return episodes_shape(self.num_envs, self.action_space.shape)

    def load_state_dict(self, state: Mapping[str, object], last_obs: Array) -> list[int]:
        """See `GymEnvs.load_state_dict`."""
        self._begun = True
        messages, opened = [], as_episodes(state)
        for worker in self.supervisor.workers:
            own = slice(worker.envs.start, worker.envs.stop)
            actions = [None if rows is None else np.asarray(rows) for rows in opened["actions"][own]]
            episode, steps = ([int(x) for x in numbers[own]] for numbers in (opened["episode"], opened["steps"]))
            part: EpisodesState = {"episode": episode, "steps": steps, "actions": actions}
            messages.append(frame(b"x", {"do": "load", "state": part, "last_obs": np.asarray(last_obs[own])}))
        replies, lost = self.supervisor.ask(messages)
        missing: list[int] = []
        for worker, reply in zip(self.supervisor.workers, replies, strict=True):
            if worker in lost:
                self.supervisor.revive(worker, lost[worker], "while its episodes were restored")
                missing += worker.envs
            else:
                missing += [worker.envs.start + index for index in reply["lost"]]
        self._handed_out()
        return missing
