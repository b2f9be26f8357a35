"""What a task on a MuJoCo model consists of. All of it is computed for N envs at once, on arrays `[N, ...]`."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from surefoot.errors import EnvError, UsageError

if TYPE_CHECKING:
    import mujoco

    from surefoot.envs.mujoco.batch import Simulations
    from surefoot.types import Array, Info

LARGEST = 1e10  # beyond it MuJoCo resets a simulation by itself (mjMAXVAL)


class MujocoTask(ABC):
    """One model, and how its envs start, what they observe and what they pay.

    A step calls `before_step`, steps the simulations, and calls `observe`, `reward` and `terminated`, in this order.
    Arrays that the methods return are copied, so they may be views or buffers that are used again. Keep nothing from
    step to step except through `before_step`, and nothing from an episode except what `start` sets: a resumed run
    plays its open episodes again, some of them longer than others.
    """

    xml: str | Path = ""  # MJCF: a file (relative to the one with this class) or the text itself
    frame_skip: int = 1  # calls of mj_step per step
    time_limit: int | None = None  # steps after which an episode is truncated
    contact_forces: bool = False  # whether cfrc_ext, cfrc_int and cacc are needed

    sims: Simulations  # the N simulations, from `connect` on
    model: mujoco.MjModel
    qpos: Array  # [N, nq], live
    qvel: Array  # [N, nv], live

    def connect(self, sims: Simulations) -> None:
        """The simulations to compute with."""
        self.sims, self.model, self.qpos, self.qvel = sims, sims.model, sims.qpos, sims.qvel
        self.prepare()

    @property
    def num_envs(self) -> int:
        return self.sims.num

    @property
    def dt(self) -> float:
        """Simulated seconds per step."""
        return float(self.model.opt.timestep * self.frame_skip)

    def make_model(self) -> mujoco.MjModel:
        """The model; `xml` by default."""
        from mujoco import MjModel

        name, xml = type(self).__name__, self.xml
        if not isinstance(xml, str | Path) or not str(xml):
            raise UsageError(f"{name} has no model; set xml to a file or to MJCF, or override make_model")
        try:
            if str(xml).lstrip().startswith("<"):
                return MjModel.from_xml_string(str(xml))
            own = getattr(sys.modules.get(type(self).__module__), "__file__", None)
            file = Path(xml).expanduser() if own is None else Path(own).parent / Path(xml).expanduser()
            if not file.is_file():
                raise UsageError(f"{name}: xml={str(xml)!r}, but {file} is not a file")
            return MjModel.from_xml_path(str(file))
        except ValueError as error:
            raise UsageError(f"{name}: MuJoCo cannot make a model of xml: {' '.join(str(error).split())}") from None

    def prepare(self) -> None:  # noqa: B027 - most tasks need nothing
        """Look up ids, fields (`self.sims.field`) and buffers here: called for every new batch of simulations.

        They have a copy of the model already, so whatever changes it belongs in `make_model`.
        """

    def start(self, env: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """(qpos, qvel) at the start of an episode of env `env`. Draw from `rng`, which has the episode's seed."""
        return self.model.qpos0, np.zeros(self.model.nv)

    def first_state(self, env: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """What `start` returns, checked: a wrong shape might be broadcast, and MuJoCo replaces a NaN, silently."""
        name, both = type(self).__name__, self.start(env, rng)
        if not isinstance(both, tuple | list) or len(both) != 2:
            raise EnvError(f"{name}.start returned {type(both).__name__}; it must return two arrays, (qpos, qvel)")
        qpos, qvel = both
        found, wanted = (np.shape(qpos), np.shape(qvel)), ((self.model.nq,), (self.model.nv,))
        if found != wanted:
            raise EnvError(f"{name}.start returned qpos and qvel of {found}, not {wanted}")
        if not np.vdot(qpos, qpos) + np.vdot(qvel, qvel) <= LARGEST**2:
            raise EnvError(f"{name}.start returned numbers that are not finite or too large: qpos {qpos}, qvel {qvel}")
        return qpos, qvel

    def last_info(self, env: int) -> Info:
        """What `info` returns, checked."""
        found = self.info(env)
        if not isinstance(found, dict):
            raise EnvError(f"{type(self).__name__}.info returned {type(found).__name__}; it must return a dict")
        return found

    def before_step(self) -> None:  # noqa: B027 - most tasks need nothing
        """Copy here what the reward compares with, such as positions before the step."""

    @abstractmethod
    def observe(self) -> Array:
        """The observations `[N, size]`."""

    @abstractmethod
    def reward(self, action: Array) -> Array:
        """The rewards `[N]` of the last step. `action`: `[N, nu]` float32."""

    def terminated(self) -> Array | None:
        """`[N]` bool: where the episode is over, not counting the time limit. None: nowhere."""
        return None

    def info(self, env: int) -> Info:
        """Numbers about the last step of one env, at the end of its episode (`--log-info` logs them by name)."""
        return {}
