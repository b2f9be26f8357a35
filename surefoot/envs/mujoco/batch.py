"""N simulations of one MuJoCo model, stepped together on threads by MuJoCo's own batch.

The C functions of `mujoco/mjbatch.h` are called directly, because `mujoco.batch.Batch` cannot compute contact forces
(`mj_rnePostConstraint`). Every simulation has an `MjData` of its own, and no bit depends on the number of threads.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from ctypes import CDLL, POINTER, Structure, byref, c_bool, c_char_p, c_int, c_void_p, cast, create_string_buffer
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.errors import did_you_mean

if TYPE_CHECKING:
    import mujoco

    from surefoot.types import Array

NEEDED = "mujoco>=3.17,<4"  # earlier ones have no batch
STATE = {  # fields of MjData that are part of a simulation's state, and their names in mjtState
    "time": "TIME",
    "qpos": "QPOS",
    "qvel": "QVEL",
    "act": "ACT",
    "qacc_warmstart": "WARMSTART",
    "ctrl": "CTRL",
    "qfrc_applied": "QFRC_APPLIED",
    "xfrc_applied": "XFRC_APPLIED",
    "eq_active": "EQ_ACTIVE",
    "mocap_pos": "MOCAP_POS",
    "mocap_quat": "MOCAP_QUAT",
    "userdata": "USERDATA",
}
NO_STAGE, ACCELERATION = 0, 3  # mjtStage: compute nothing; compute everything, as mj_forward does


class NoBatch(Exception):
    """MuJoCo cannot step these simulations in a batch; the message says why."""


class SimulationFailed(Exception):
    """MuJoCo raised an error in a simulation."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index


class _Config(Structure):
    _fields_ = (("threads", c_int), ("persistent", c_bool))


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {  # result and arguments, as in mjbatch.h
    "mjb_makeBatch": (c_void_p, [c_void_p, c_int, POINTER(_Config), c_char_p, c_int]),
    "mjb_deleteBatch": (None, [c_void_p]),
    "mjb_nstate": (c_int, [c_void_p]),
    "mjb_state": (c_void_p, [c_void_p]),
    "mjb_stateComponent": (c_void_p, [c_void_p, c_int, c_void_p]),
    "mjb_output": (c_void_p, [c_void_p, c_char_p, c_void_p, c_void_p]),
    "mjb_status": (c_void_p, [c_void_p]),
    "mjb_error": (c_char_p, [c_void_p, c_int]),
    "mjb_step": (c_int, [c_void_p, c_void_p, c_int, c_int, c_int]),
    "mjb_forward": (c_int, [c_void_p, c_void_p, c_int, c_int]),
    "mjb_reset": (c_int, [c_void_p, c_void_p, c_int, c_void_p, c_int]),
    "mjb_apply": (c_int, [c_void_p, c_void_p, c_int, c_void_p, c_void_p, c_int]),
    "mjb_getData": (None, [c_void_p, c_int, c_void_p]),
    "mj_rnePostConstraint": (None, [c_void_p, c_void_p]),
}


@cache
def batch_library() -> CDLL:
    """MuJoCo's library, with its batch functions declared; NoBatch if it has none."""
    try:
        package = import_module("mujoco")
    except ImportError as error:
        raise NoBatch(f"MuJoCo cannot be imported: {error}") from None
    try:
        # Looking a symbol up in this module finds it in libmujoco, whose file name depends on the version.
        library = CDLL(str(import_module("mujoco._batch").__file__))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)  # the attribute is kept; library[name] would be another object
            function.restype, function.argtypes = result, arguments
    except (ImportError, OSError, AttributeError):
        version = package.__dict__.get("__version__", "of this version")
        raise NoBatch(f'MuJoCo {version} has no batch; pip install "{NEEDED}"') from None
    if package.MJTNUM_DTYPE is not np.float64:
        raise NoBatch("this MuJoCo computes in single precision")
    return library


def check_callbacks() -> None:
    """Python functions installed as physics callbacks cannot run on the batch's threads."""
    package = import_module("mujoco")
    for name in dir(package):
        if name.startswith("get_mjcb_") and getattr(package, name)() is not None:
            raise NoBatch(f"the physics callback {name.removeprefix('get_')} is installed")


class _Memory:
    """Memory of a batch as NumPy sees it. Arrays refer to it, and it to the batch, which is freed after them."""

    def __init__(self, owner: _Owner, address: int, shape: Sequence[int], dtype: str) -> None:
        self.owner = owner
        self.__array_interface__ = {"data": (address, False), "shape": tuple(shape), "typestr": dtype, "version": 3}


class _Owner:
    """Frees a batch when nothing refers to it any more."""

    def __init__(self, library: CDLL, address: int) -> None:
        self.address = address
        weakref.finalize(self, library.mjb_deleteBatch, address).atexit = False


class Simulations:
    """N simulations of a copy of `model`.

    `qpos`, `qvel`, `ctrl` and the arrays from `field` are live `[N, ...]` views: what is written into the state is what
    the next call starts from, and every call refreshes the other fields. After `step` those are one substep behind the
    state, as with `mj_step`. `contact_forces`: `step` computes `cfrc_ext` and what belongs to it, at a small cost.
    """

    def __init__(self, model: mujoco.MjModel, num: int, threads: int = 1, *, contact_forces: bool = False) -> None:
        library = batch_library()
        check_callbacks()
        self.model, self.num, self.threads = model, num, threads
        message = create_string_buffer(1024)
        address = library.mjb_makeBatch(model._address, num, byref(_Config(threads, True)), message, len(message))
        if not address:
            raise NoBatch(f"MuJoCo cannot make a batch of this model: {message.value.decode(errors='replace')}")
        self._library, self._batch, self._owner = library, address, _Owner(library, address)
        self._step, self._apply, self._forward = library.mjb_step, library.mjb_apply, library.mjb_forward
        # A function of (model, data, simulation, argument) is expected; this one does not look at the last two.
        self._forces = cast(library.mj_rnePostConstraint, c_void_p) if contact_forces else None
        self._data = import_module("mujoco").MjData(model)  # for the shapes of its fields
        width = library.mjb_nstate(address)
        self.state = self._array(library.mjb_state(address), (num, width), "<f8")
        self._status = self._array(library.mjb_status(address), (num,), "<i4")
        self._fields: dict[str, Array] = {}
        self.qpos, self.qvel, self.ctrl = (self.field(name) for name in ("qpos", "qvel", "ctrl"))

    def _array(self, address: int, shape: Sequence[int], dtype: str) -> Array:
        return np.asarray(_Memory(self._owner, address, shape, dtype))

    @property
    def positions_and_velocities(self) -> Array:
        """`[N, nq + nv]`: qpos and qvel, which are neighbours in the state."""
        start, _ = self._component("qpos")
        return self.state[:, start : start + self.model.nq + self.model.nv]

    def field(self, name: str) -> Array:
        """A live `[N, ...]` view of a field of MjData."""
        if name not in self._fields:
            self._fields[name] = self._state_field(name) if name in STATE else self._output(name)
        return self._fields[name]

    def flat(self, name: str) -> Array:
        """The same field as `[N, size]`."""
        return self.field(name).reshape(self.num, -1)

    def _component(self, name: str) -> tuple[int, int]:
        """(first column, columns) in the state."""
        size = c_int()
        component = getattr(import_module("mujoco").mjtState, f"mjSTATE_{STATE[name]}")
        address = self._library.mjb_stateComponent(self._batch, int(component), byref(size))
        return (address - self._library.mjb_state(self._batch)) // 8, size.value

    def _state_field(self, name: str) -> Array:
        start, size = self._component(name)
        view = self.state[:, start : start + size]
        return view[:, 0] if name == "time" else view.reshape(self.num, *getattr(self._data, name).shape)

    def _output(self, name: str) -> Array:
        shown = getattr(self._data, name, None)
        address = self._library.mjb_output(self._batch, name.encode(), None, None)
        if not address or not isinstance(shown, np.ndarray):
            known = [one for one in dir(self._data) if not one.startswith("_")]
            raise NoBatch(f"{name} is not a field of MjData that a batch has{did_you_mean(name, known)}")
        view = self._array(address, (self.num, *shown.shape), shown.dtype.str)
        view.flags.writeable = False  # the next call would overwrite it
        self._check(self._forward(self._batch, None, self.num, NO_STAGE))  # filled by the next call, so make one
        return view

    def step(self, substeps: int, ids: Array | None = None) -> None:
        """`mj_step`, `substeps` times. `ids`: int32, ascending; None: all simulations."""
        batch, some, num = self._batch, *self._some(ids)
        self._check(self._step(batch, some, num, substeps, NO_STAGE))
        if self._forces is not None:
            self._check(self._apply(batch, some, num, self._forces, None, 0))
            self._check(self._forward(batch, some, num, NO_STAGE))  # copies the fields again

    def forward(self, ids: Array | None = None) -> None:
        """`mj_forward`."""
        self._check(self._forward(self._batch, *self._some(ids), ACCELERATION))

    def reset(self, ids: Array | None = None) -> None:
        """`mj_resetData`; to be followed by writes to the state and `forward`."""
        self._check(self._library.mjb_reset(self._batch, *self._some(ids), None, NO_STAGE))

    def copy_data(self, index: int, data: mujoco.MjData) -> None:
        """Copy everything about one simulation, for example to draw it."""
        self._library.mjb_getData(self._batch, index, data._address)

    def _some(self, ids: Array | None) -> tuple[int | None, int]:
        return (None, self.num) if ids is None else (ids.ctypes.data, len(ids))

    def _check(self, failed: int) -> None:
        if failed:
            index = int(np.flatnonzero(self._status)[0])
            message = self._library.mjb_error(self._batch, index).decode(errors="replace")
            raise SimulationFailed(index, message)
