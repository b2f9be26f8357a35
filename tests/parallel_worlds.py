"""Parallel envs as PettingZoo's are, without the package."""

import numpy as np
from gymnasium import spaces


class World:
    """Three agents a, b, c. `lives` says after how many steps each ends, and how ("terminated" or "truncated").

    An agent sees (its number, the step, a number drawn from the episode's seed) and is paid its number plus the step.
    """

    metadata = {"name": "world"}
    lives = {"a": (2, "terminated"), "b": (4, "truncated"), "c": (3, "terminated")}

    def __init__(self, lives=None, render_mode=None, **extra):
        self.lives = lives or self.lives
        self.possible_agents, self.agents = list(self.lives), []
        self.extra, self.seeds, self.closed, self.received = extra, [], False, []

    def observation_space(self, agent):
        return spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def observe(self, agent):
        return np.array([self.possible_agents.index(agent), self.time, self.random.normal()], np.float32)

    def reset(self, seed=None, options=None):
        self.seeds.append(seed)
        self.random, self.time = np.random.default_rng(seed), 0
        self.agents = self.present()
        return {agent: self.observe(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def present(self):
        return list(self.possible_agents)

    def step(self, actions):
        assert sorted(actions) == sorted(self.agents), "actions for the live agents and nobody else"
        self.received.append(actions)
        self.time += 1
        acting = self.agents
        ends = {agent: self.time >= self.length(agent) for agent in acting}
        how = {agent: self.lives[agent][1] for agent in acting}
        self.agents = [agent for agent in acting if not ends[agent]]
        return (
            {agent: self.observe(agent) for agent in acting},
            {agent: float(self.possible_agents.index(agent) + self.time) for agent in acting},
            {agent: ends[agent] and how[agent] == "terminated" for agent in acting},
            {agent: ends[agent] and how[agent] == "truncated" for agent in acting},
            {agent: {"time": self.time} for agent in acting},
        )

    def length(self, agent):
        return self.lives[agent][0]

    def close(self):
        self.closed = True


class RandomWorld(World):
    """How long each agent lives is drawn at reset."""

    def reset(self, seed=None, options=None):
        random = np.random.default_rng(seed)
        self.drawn = {agent: int(random.integers(2, 8)) for agent in self.possible_agents}
        return super().reset(seed, options)

    def length(self, agent):
        return self.drawn[agent]

    def step(self, actions):
        obs, reward, *rest = super().step(actions)
        return obs, {agent: value * int(actions[agent]) for agent, value in reward.items()}, *rest


class MaskedWorld(World):
    """Only the action (agent's number + step) modulo 2 is legal; the mask of an end is empty."""

    in_obs = False

    def observation_space(self, agent):
        seen = super().observation_space(agent)
        return spaces.Dict(observation=seen, action_mask=spaces.MultiBinary(2)) if self.in_obs else seen

    def legal(self, agent):
        return (self.possible_agents.index(agent) + self.time) % 2

    def shown(self, obs, infos):
        for agent in obs:
            mask = np.zeros(2, np.int8)
            mask[self.legal(agent)] = agent in self.agents
            if self.in_obs:
                obs[agent] = {"observation": obs[agent], "action_mask": mask}
            else:
                infos[agent]["action_mask"] = mask
        return obs, infos

    def reset(self, seed=None, options=None):
        return self.shown(*super().reset(seed, options))

    def step(self, actions):
        assert all(action == self.legal(agent) for agent, action in actions.items())
        obs, reward, terminated, truncated, infos = super().step(actions)
        obs, infos = self.shown(obs, infos)
        return obs, reward, terminated, truncated, infos


class MaskedInObs(MaskedWorld):
    in_obs = True


class Latecomer(World):
    """c comes in at the second step."""

    def present(self):
        return ["a", "b"]

    def step(self, actions):
        obs, *rest = super().step(actions)
        if self.time == 2:
            self.agents.append("c")
            obs["c"] = self.observe("c")
        return obs, *rest


class Hybrid(RandomWorld):
    """Nested actions."""

    def action_space(self, agent):
        return spaces.Dict(go=spaces.Discrete(2), force=spaces.Box(-1.0, 1.0, (2,), np.float32))

    def step(self, actions):
        assert all(self.action_space(agent).contains(action) for agent, action in actions.items())
        return super().step({agent: action["go"] for agent, action in actions.items()})


def make(**kwargs):
    return World(**kwargs)


def strict():
    return World()
