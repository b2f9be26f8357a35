"""Atari as everybody learns it: no-op starts, four frames per step with the maximum of the last two, 84×84 grey, four
frames in a stack, FIRE where a game waits for it, a lost life as an end for learning alone.

The game itself goes on after a lost life, and its true score is what is reported.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import gymnasium as gym

from surefoot.errors import UsageError

LIFE_LOST = "life_lost"  # in info: learn as if the episode had ended here, though it goes on


def is_atari(env_id: str) -> bool:
    return env_id.startswith("ALE/")


def make_kwargs(env_id: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The four frames are taken by the preprocessing, which also needs to see each of them."""
    wants_pixels = is_atari(env_id) and kwargs.get("obs_type", "rgb") == "rgb"
    return {"frameskip": 1, **kwargs} if wants_pixels and "frameskip" not in kwargs else kwargs


def preprocess(env: gym.Env[Any, Any], kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    """Pixels get the standard preprocessing, unless the user chose a frame skip or observations of another kind."""
    if kwargs.get("obs_type", "rgb") != "rgb" or "frameskip" in kwargs:
        return env
    if find_spec("cv2") is None:
        raise UsageError('Atari from pixels needs OpenCV: pip install "surefoot[atari]"')
    env = gym.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84)
    env = LostLives(FireReset(env) if _waits_for_fire(env) else env)
    return gym.wrappers.FrameStackObservation(env, 4)


def _waits_for_fire(env: gym.Env[Any, Any]) -> bool:
    meanings = env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
    return len(meanings) > 1 and meanings[1] == "FIRE"


class FireReset(gym.Wrapper[Any, Any, Any, Any]):
    """Presses FIRE after a reset: some games wait for it, and an agent may never find out."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.env.reset(seed=seed, options=options)
        obs, _, terminated, truncated, info = self.env.step(1)
        if terminated or truncated:
            return self.env.reset(options=options)
        return obs, info


class LostLives(gym.Wrapper[Any, Any, Any, Any]):
    """Says in info where a life was lost and the game went on."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._lives = 0

    def _now(self) -> int:
        return int(self.env.unwrapped.ale.lives())  # type: ignore[attr-defined]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._lives = self._now()
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        before, self._lives = self._lives, self._now()
        if 0 < self._lives < before and not (terminated or truncated):
            info[LIFE_LOST] = True
        return obs, reward, terminated, truncated, info
