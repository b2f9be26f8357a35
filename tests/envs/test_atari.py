"""Seeded resets that do not load the game anew, against those that do."""

import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

from surefoot.envs import atari
from surefoot.envs.atari import QuickSeeds, with_generator
from surefoot.envs.config import EnvConfig
from surefoot.envs.make import make_env


def twister(seed):
    """The words of a freshly seeded MT19937, by its definition."""
    words = [seed]
    for index in range(1, 624):
        words.append((1812433253 * (words[-1] ^ (words[-1] >> 30)) + index) % 2**32)
    return words


def serialized(seed, first=b"abc"):
    """As ALE does it: a head, a sized body with two sized generators in it, a tail."""
    texts = [" ".join(map(str, [*twister(s), place])).encode() for s, place in ((7, 133), (seed, 624))]
    body = first + b"".join(b"name" + len(text).to_bytes(4, "little") + text for text in texts) + b"more"
    return bytes(24) + len(body).to_bytes(4, "little") + body + bytes(8)


@pytest.mark.parametrize("seed", [1, 5489, 2**32 - 1])
def test_a_state_gets_the_generator_of_another_seed(seed):
    assert with_generator(serialized(3), seed) == serialized(seed)


@pytest.mark.parametrize("state", [b"", bytes(40), serialized(3) + b"x", b"x" + serialized(3)])
def test_a_state_of_another_kind_is_not_touched(state):
    assert with_generator(state, 1) is None


class Console:
    """What ALE is to the wrapper: its state is that of a new game, and a generator."""

    def __init__(self):
        self.state = b""

    def cloneState(self, *, include_rng):
        assert include_rng
        return SimpleNamespace(serialize=lambda: self.state)

    def restoreState(self, state):
        self.state = state


class Game(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 255, (2,), np.uint8), gym.spaces.Discrete(2)

    def __init__(self, state=serialized):
        self.ale, self.loads, self.resets, self.new = Console(), 0, 0, state

    def seed_game(self, seed):
        self.seeded = seed
        return 0, seed + 1000

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        self.ale.state = b"played on"
        info = {"lives": 5}
        if seed is not None:
            self.loads += 1
            info["seeds"] = self.seed_game(seed)
            self.ale.state = self.new(seed + 1000)
        return np.array([1, 2], np.uint8), info


@pytest.fixture(autouse=True)
def _states_are_bytes(request, monkeypatch):
    if "real" not in request.node.name:
        monkeypatch.setitem(sys.modules, "ale_py", SimpleNamespace(ALEState=bytes))


def test_the_game_is_loaded_twice_and_every_reset_is_as_if_it_had_been():
    game = Game()
    env = QuickSeeds(game)
    for seed in (5, 9, 6, 5, 7):
        obs, info = env.reset(seed=seed)
        assert obs.tolist() == [1, 2]
        assert info == {"lives": 5, "seeds": (0, seed + 1000)}
        assert game.ale.state == serialized(seed + 1000)
        assert game.seeded == seed
        obs[:], info["lives"] = 0, 0  # those who got them may do with them what they want
    assert (game.loads, game.resets) == (2, 5)


def test_a_reset_without_a_seed_is_left_alone():
    game = Game()
    env = QuickSeeds(game)
    for seed in (1, 2, 3):
        env.reset(seed=seed)
    assert "seeds" not in env.reset()[1]
    assert game.ale.state == b"played on"


@pytest.mark.parametrize(
    "state",
    [lambda seed: serialized(seed, str(seed).encode()), lambda seed: serialized(seed)[1:], lambda seed: serialized(4)],
    ids=["more of it depends on the seed", "another format", "another generator"],
)
def test_a_game_that_is_otherwise_is_loaded_every_time(state):
    game = Game(state)
    env = QuickSeeds(game)
    for seed in (5, 9, 6, 5):
        env.reset(seed=seed)
        assert game.ale.state == state(seed + 1000)
    assert game.loads == 4


@pytest.mark.parametrize("name", ["Breakout", "Pong"])
def test_real_games_are_the_same_frame_by_frame(name, monkeypatch):
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    quick = make_env(EnvConfig(env=f"ALE/{name}-v5"))
    monkeypatch.setattr(atari, "QuickSeeds", lambda env: env)
    monkeypatch.setattr("surefoot.envs.make.make_kwargs", lambda env_id, kwargs: {**kwargs, "frameskip": 1})
    real = make_env(EnvConfig(env=f"ALE/{name}-v5"))
    loads = []
    load = quick.unwrapped.load_game
    monkeypatch.setattr(quick.unwrapped, "load_game", lambda: loads.append(load()))
    rng = np.random.default_rng(0)
    for seed in (3, 1, 4, 1):
        (obs, info), (other, other_info) = quick.reset(seed=seed), real.reset(seed=seed)
        assert info == other_info
        np.testing.assert_array_equal(obs, other)
        for _ in range(60):
            action = int(rng.integers(quick.action_space.n))
            got, wanted = quick.step(action), real.step(action)
            np.testing.assert_array_equal(got[0], wanted[0])
            assert got[1:] == wanted[1:]
    assert len(loads) == 2
    quick.close()
    real.close()


def test_real_games_without_a_noop_have_no_noop_starts():
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    env = make_env(EnvConfig(env="ALE/Backgammon-v5"))
    one, _ = env.reset(seed=1)
    two, _ = env.reset(seed=1)
    np.testing.assert_array_equal(one, two)
    env.close()
