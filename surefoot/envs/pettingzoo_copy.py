"""One copy of a PettingZoo parallel env: how it is made, which agents are alive, and how it is replayed."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from surefoot.envs.checks import as_flag, blamed, reset_result, step_result
from surefoot.envs.make import made
from surefoot.envs.open_episodes import LONGEST_REPLAY, close_all, kept
from surefoot.envs.seeds import derive_seed, episode_seed
from surefoot.errors import EnvError, UsageError, did_you_mean
from surefoot.user_code import load_object

if TYPE_CHECKING:
    from types import ModuleType

    from surefoot.envs.config import EnvConfig
    from surefoot.types import GymSpace, Info

PREFIX = "pettingzoo:"
ONE_PROCESS = "all copies are stepped in this process"
NEEDED = ("reset", "step", "observation_space", "action_space", "possible_agents")


class ParallelEnv(Protocol):
    """A parallel env of PettingZoo. What it returns is checked by the caller."""

    possible_agents: Sequence[str]
    agents: Sequence[str]

    def observation_space(self, agent: str) -> GymSpace: ...

    def action_space(self, agent: str) -> GymSpace: ...

    def reset(self, *, seed: int, options: None) -> object: ...

    def step(self, actions: dict[str, object]) -> object: ...

    def close(self) -> object: ...


class ParallelMaker:
    """Makes copies of the parallel env that a config names: `pettingzoo:module` or `pettingzoo:file.py:factory`."""

    def __init__(self, config: EnvConfig) -> None:
        for name, given, advice in (
            ("wrappers", config.wrappers, "wrap it in a factory of your own (pettingzoo:file.py:factory)"),
            ("frame_stack", config.frame_stack > 1, "stack in a factory of your own (pettingzoo:file.py:factory)"),
            ("workers", config.workers, ONE_PROCESS),
        ):
            if given:
                raise UsageError(f"{name} cannot be used with a parallel env: {advice}")
        self.config = config
        self._factory = _find(config.env)

    def __call__(self) -> ParallelEnv:
        config = self.config
        with made(config):
            env = self._factory(**config.env_kwargs)
        missing = [name for name in NEEDED if not hasattr(env, name)]
        if missing or not callable(env.observation_space):
            raise UsageError(
                f"{config.env} made a {type(env).__name__}, which is not a PettingZoo parallel env"
                + (f" (it has no {', '.join(missing)})" if missing else "; drop pettingzoo: for Gymnasium's envs")
            )
        return env

    def spaces(self) -> tuple[GymSpace, GymSpace]:
        """Observation and action space of every agent."""
        copy = Copy(self(), 0, 0)
        try:
            return copy.observation_space, copy.action_space
        finally:
            close_all([copy])


def _find(env_id: str) -> Callable[..., ParallelEnv]:
    """The function that makes the env."""
    name = env_id.removeprefix(PREFIX)
    if not name:
        raise UsageError(f"name a module or file.py:factory after {PREFIX}")
    if ":" in name:
        factory = load_object(name, "env")
    else:
        module = _module(name)
        factory = getattr(module, "parallel_env", None)
        if factory is None:
            raise UsageError(
                f"{name} has no parallel_env: only envs in which all agents act at once are supported; "
                f"for one of your own write {PREFIX}{name}:factory"
            )
    if not callable(factory):
        raise UsageError(f"{env_id} is not a function that makes an env, but {type(factory).__name__}")
    found: Callable[..., ParallelEnv] = factory
    return found


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == "pettingzoo":
            raise UsageError('PettingZoo is not installed: pip install "surefoot[pettingzoo]"') from None
        parent, _, last = name.rpartition(".")
        if error.name != name or not parent:
            raise UsageError(f"{PREFIX}{name}: {error}") from None
        siblings = [module.name for module in pkgutil.iter_modules(importlib.import_module(parent).__path__)]
        raise UsageError(f"there is no {last} in {parent}{did_you_mean(last, siblings)}") from None
    except ImportError as error:
        raise UsageError(f"{PREFIX}{name} could not be imported: {error}") from None


class Copy:
    """Seeds every reset from (run seed, copy index, episode number) and knows which agents are alive."""

    def __init__(self, env: ParallelEnv, run_seed: int, index: int, max_steps: int | None = None) -> None:
        self.env, self.run_seed, self.index, self.max_steps = env, run_seed, index, max_steps
        self.agents: list[str] = list(env.possible_agents)
        if not self.agents:
            raise UsageError(f"{self._name} has no agents")
        self.observation_space, self.action_space = (
            self._common(kind, [getattr(env, kind)(agent) for agent in self.agents])
            for kind in ("observation_space", "action_space")
        )
        self.episode, self.steps = -1, 0
        self.actions: list[list[object]] = []  # in the open episode; with the seed, they determine its state
        self.alive = [False] * len(self.agents)
        self._gone: set[str] = set()  # agents that have left this episode
        self.incomplete = False  # an agent was missing when the episode began
        self.observations: dict[str, object] = {}
        self.rewards: dict[str, object] = {}
        self.ends: dict[str, tuple[bool, bool]] = {}
        self.infos: dict[str, Info] = {}

    def _common(self, kind: str, spaces: list[GymSpace]) -> GymSpace:
        for agent, space in zip(self.agents, spaces, strict=True):
            if space != spaces[0]:
                raise UsageError(
                    f"one policy for all agents needs equal spaces, but the {kind} of {agent} is {space}, that of "
                    f"{self.agents[0]} {spaces[0]}; pad them in a factory of your own"
                )
        return spaces[0]

    @property
    def _name(self) -> str:
        named = (getattr(self.env, "metadata", None) or {}).get("name")
        return str(named or type(getattr(self.env, "unwrapped", self.env)).__name__)

    @property
    def seed(self) -> int:
        return episode_seed(self.run_seed, self.index, self.episode)

    @property
    def numbers(self) -> list[int]:
        """The number of each agent's episode, or of the next one if the agent has left this one."""
        return [self.episode + (agent in self._gone) for agent in self.agents]

    def __str__(self) -> str:
        return f"{self._name} (copy {self.index}, seed {self.seed}, episode {self.episode}, step {self.steps})"

    def reset(self) -> None:
        self.episode += 1
        self.steps = 0
        self.actions.clear()
        self._gone.clear()
        with blamed("reset", self):
            self.observations, self.infos = reset_result(self.env.reset(seed=self.seed, options=None), self)
            present = set(self.env.agents)
        self._require_known(present)
        self.alive = [agent in present for agent in self.agents]
        self.incomplete = not all(self.alive)
        if not any(self.alive):
            raise EnvError(f"{self} has no agents after its reset")
        self._require(self.observations, "observation", [a for a in self.agents if a in present])

    def step(self, actions: Sequence[object]) -> list[str]:
        """Step with one action per agent; those of dead agents are ignored. Returns the agents that joined."""
        acting = [agent for agent, alive in zip(self.agents, self.alive, strict=True) if alive]
        chosen = dict(zip(self.agents, actions, strict=True))
        self.steps += 1
        if self.steps <= LONGEST_REPLAY:
            self.actions.append([kept(action) for action in actions])
        with blamed("step", self):
            found = step_result(self.env.step({agent: chosen[agent] for agent in acting}), self)
            self.observations, self.rewards, terminations, truncations, self.infos = found
            present = set(self.env.agents)
        self._require_known(present)
        for values, what in (
            (self.observations, "observation"),
            (self.rewards, "reward"),
            (terminations, "termination"),
            (truncations, "truncation"),
        ):
            self._require(values, what, acting)
        over = self.max_steps is not None and self.steps >= self.max_steps
        self.ends = {}
        for agent in acting:
            name = AgentOfCopy(self, agent)
            cut = as_flag(truncations[agent], "truncated", name)
            self.ends[agent] = as_flag(terminations[agent], "terminated", name), cut or over
        for agent in acting:
            if any(self.ends[agent]):
                self._gone.add(agent)
            elif agent not in present:
                raise EnvError(f"{agent} of {self} is gone, but was neither terminated nor truncated")
        came = [a for a in self.agents if a in present and a not in acting and a not in self._gone and not over]
        self._require(self.observations, "observation", came)
        self.alive = [agent in came or (agent in acting and agent not in self._gone) for agent in self.agents]
        return came

    def replay(self, episode: int, actions: Sequence[Sequence[object]]) -> bool:
        """Bring the env to the state of `episode` after `actions`. Returns whether the episode lasted that long."""
        self.episode = episode - 1
        self.reset()
        for each in actions:
            if not any(self.alive):
                return False
            self.step(each)
        return any(self.alive)

    def close(self) -> None:
        self.env.close()

    def _require_known(self, present: set[str]) -> None:
        if unknown := present - set(self.agents):
            raise EnvError(f"{self} has the agents {sorted(map(str, unknown))}, not among its possible_agents")

    def _require(self, values: object, what: str, agents: Sequence[str]) -> None:
        if not isinstance(values, Mapping):
            raise EnvError(f"{self} returned {what}s that are not a dict by agent, but {type(values).__name__}")
        for agent in agents:
            if agent not in values:
                raise EnvError(f"{self} returned no {what} for {agent}")
            if not isinstance(info := self.infos.get(agent, {}), dict):
                raise EnvError(f"{self} returned the info {info!r} for {agent}; it must be a dict: return {{}}")


def common_agents(copies: Sequence[Copy]) -> list[str]:
    """The agents that all copies have; UsageError if one has others."""
    agents = copies[0].agents
    for copy in copies:
        if copy.agents != agents:
            raise UsageError(f"{copy} has the agents {copy.agents}, but another copy has {agents}")
    return agents


class EvaluationCopy(Copy):
    """Episode j of an evaluation has seed (seed, "eval", j), whichever copy plays it."""

    @property
    def seed(self) -> int:
        return derive_seed(self.run_seed, "eval", self.episode)


@dataclass(frozen=True)
class AgentOfCopy:
    """The name of a row in messages."""

    copy: Copy
    agent: str

    def __str__(self) -> str:
        return f"{self.agent} of {self.copy}"
