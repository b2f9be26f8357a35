"""Keeps MuJoCo quiet about the models that Gymnasium ships."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec

import gymnasium as gym


@contextmanager
def quiet_models(env_id: str, kwargs: Mapping[str, object]) -> Iterator[None]:
    """While an env of Gymnasium's own with its own model is made: no word about deprecated attributes.

    MuJoCo would print one for each env, and add it to a MUJOCO_LOG.TXT in the working directory, though no user can
    change these models. Its other warnings become Python's.
    """
    spec = gym.registry.get(env_id)
    theirs = spec is not None and str(spec.entry_point).startswith("gymnasium.envs.mujoco.")
    if not theirs or "xml_file" in kwargs or find_spec("mujoco") is None:
        yield
        return
    mujoco = import_module("mujoco")
    if mujoco.get_mju_user_warning() is not None:  # a handler of the user's
        yield
        return
    mujoco.set_mju_user_warning(_warn)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(None)


def _warn(message: str) -> None:
    if "deprecated" not in message:
        warnings.warn(f"MuJoCo: {message}", stacklevel=2)
