"""The standard Atari preprocessing: no-op starts, four frames per step with the maximum of the last two, 84×84 grey, a
stack of four frames, FIRE where a game waits for it, and losing a life as an end of the episode for learning only.

The game itself continues after a lost life, and its true score is reported.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from surefoot.envs.ids import ATARI
from surefoot.errors import UsageError

if TYPE_CHECKING:
    from surefoot.types import Array, GymEnv, GymStep, Info

LIFE_LOST = "life_lost"  # in info: learn as if the episode had ended here, although the game continues


def is_atari(env_id: str) -> bool:
    return env_id.startswith(ATARI)


def make_kwargs(env_id: str, kwargs: dict[str, object]) -> dict[str, object]:
    """Frame skip off: the preprocessing skips frames itself, because it needs to see each of them."""
    wants_pixels = is_atari(env_id) and kwargs.get("obs_type", "rgb") == "rgb"
    return {**kwargs, "frameskip": 1, "obs_type": "grayscale"} if wants_pixels and "frameskip" not in kwargs else kwargs


def preprocess(env: GymEnv, kwargs: dict[str, object]) -> GymEnv:
    """Pixels get the standard preprocessing, unless the user chose a frame skip or observations of another kind."""
    if kwargs.get("obs_type", "rgb") != "rgb" or "frameskip" in kwargs:
        return env
    if find_spec("cv2") is None:
        raise UsageError('Atari from pixels needs OpenCV: pip install "surefoot[atari]"')
    noop_max = 30 if _meanings(env)[0] == "NOOP" else 0  # a few games lack it
    env = gym.wrappers.AtariPreprocessing(
        QuickSeeds(env) if noop_max else env, noop_max=noop_max, frame_skip=4, screen_size=84
    )
    env = LostLives(FireReset(env) if _waits_for_fire(env) else env)
    return gym.wrappers.FrameStackObservation(env, 4)


def _meanings(env: GymEnv) -> list[str]:
    meanings: list[str] = env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
    return meanings


def _waits_for_fire(env: GymEnv) -> bool:
    return _meanings(env)[1:2] == ["FIRE"]


class QuickSeeds(gym.Wrapper["Array", object, "Array", object]):
    """Seeded resets that do not reload the game, which takes as long as two hundred steps.

    In a new game, the seed affects only the generator that repeats actions, a Mersenne Twister. So the state after the
    first seeded reset, with another generator in it, equals the state after any other. The second reset still loads
    the game to check this; if it does not hold, every reset loads the game.

    A state has no pixels: take a step before reading the screen, as no-op starts do.
    """

    def __init__(self, env: GymEnv) -> None:
        super().__init__(env)
        self._first: tuple[Array, Info] | None = None  # what the first seeded reset returned
        self._state = b""  # and the state of the game after it
        self._trusted: bool | None = None  # not known yet

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Array, Info]:
        if seed is None or not self._trusted:
            obs, info = self.env.reset(seed=seed, options=options)
            if seed is not None and self._trusted is None:
                self._compare(obs, info)
            return obs, info
        assert self._first is not None
        obs, info = self._first
        self.env.reset(options=options)
        seeds = self.unwrapped.seed_game(seed)  # type: ignore[attr-defined]
        self.unwrapped.ale.restoreState(_state(with_generator(self._state, seeds[1])))  # type: ignore[attr-defined]
        return obs.copy(), {**info, "seeds": seeds}

    def _compare(self, obs: Array, info: dict[str, Any]) -> None:
        """Compare the result of a real reset with what the shortcut would have returned."""
        state = self.unwrapped.ale.cloneState(include_rng=True).serialize()  # type: ignore[attr-defined]
        generator = info["seeds"][1]
        if self._first is None:
            self._first, self._state = (obs.copy(), dict(info)), state
            if with_generator(state, generator) != state:
                self._trusted = False
            return
        before, said = self._first
        same = np.array_equal(obs, before) and {**said, "seeds": info["seeds"]} == info
        self._trusted = same and with_generator(self._state, generator) == state


_GENERATOR = re.compile(rb"(?:\d+ ){624}\d+")  # 624 words and the position
_HEAD, _TAIL = 24, 8  # bytes before the length of a state's main part, and after that part


def with_generator(state: bytes, seed: int) -> bytes | None:
    """A serialised ALE state with its last generator newly seeded; None if the state's format is unknown."""
    found = list(_GENERATOR.finditer(state))
    if not found:
        return None
    twister: Any = np.random.RandomState(int(seed) % 2**32).get_state(legacy=False)  # std::mt19937 of the same seed
    words = twister["state"]["key"].tolist()
    text = " ".join(map(str, [*words, len(words)])).encode()
    begin, end = found[-1].span()
    grown, body = len(text) - (end - begin), int.from_bytes(state[_HEAD : _HEAD + 4], "little")
    if _HEAD + 4 + body + _TAIL != len(state) or int.from_bytes(state[begin - 4 : begin], "little") != end - begin:
        return None
    size = (body + grown).to_bytes(4, "little")
    return state[:_HEAD] + size + state[_HEAD + 4 : begin - 4] + len(text).to_bytes(4, "little") + text + state[end:]


def _state(serialized: bytes | None) -> object:
    from ale_py import ALEState

    assert serialized is not None, "the first reset's state was understood"
    return ALEState(serialized)


class FireReset(gym.Wrapper[object, object, object, object]):
    """Presses FIRE after a reset: some games wait for it, and an agent may never discover that."""

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[object, Info]:
        self.env.reset(seed=seed, options=options)
        obs, _, terminated, truncated, info = self.env.step(1)
        if terminated or truncated:
            return self.env.reset(options=options)
        return obs, info


class LostLives(gym.Wrapper[object, object, object, object]):
    """Reports in info where a life was lost and the game continued."""

    def __init__(self, env: GymEnv) -> None:
        super().__init__(env)
        self._lives = 0

    def _now(self) -> int:
        return int(self.env.unwrapped.ale.lives())  # type: ignore[attr-defined]

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[object, Info]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._lives = self._now()
        return obs, info

    def step(self, action: object) -> GymStep:
        obs, reward, terminated, truncated, info = self.env.step(action)
        before, self._lives = self._lives, self._now()
        if 0 < self._lives < before and not (terminated or truncated):
            info[LIFE_LOST] = True
        return obs, reward, terminated, truncated, info
