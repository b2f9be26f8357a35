"""Vector envs that speak in arrays of JAX, Warp or CuPy: the same memory is given to PyTorch through DLPack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from surefoot.envs.tensor_envs import Simulator, holds_tensors, leaves_of

if TYPE_CHECKING:
    from surefoot.types import GymVectorEnv, Info

    Tree = object  # an array, or a dict, tuple or list of trees

# The package that an array's class comes from -> the module that makes such arrays from others.
MAKERS = {"jax": "jax.numpy", "jaxlib": "jax.numpy", "warp": "warp", "cupy": "cupy"}
NARROW = {torch.int64: torch.int32, torch.float64: torch.float32}


class Foreign(Protocol):
    """An array of another library."""

    def __dlpack__(self) -> object: ...


@runtime_checkable
class Deferred(Protocol):
    """An array of JAX, which may still be being computed."""

    def block_until_ready(self) -> object: ...


def maker_of(obs: Tree) -> str:
    """The module that makes arrays like those in an observation; empty if PyTorch or NumPy made them."""
    found = (MAKERS.get(type(leaf).__module__.partition(".")[0], "") for leaf in leaves_of(obs))
    return "" if holds_tensors(obs) else next(filter(None, found), "")


def as_tensor(array: Foreign) -> Tensor:
    """The same memory as a tensor. On a GPU, PyTorch's stream waits for the array; on the CPU we do."""
    if isinstance(array, Deferred):
        array.block_until_ready()
    return from_dlpack(array)


class BridgedVectorEnv(Simulator):
    """A vector env of another library's arrays as one of tensors. Nothing is copied.

    The other library must not write into an array that it has returned before its next step. (JAX never does.)
    """

    def __init__(self, envs: GymVectorEnv, maker: str) -> None:
        self.envs, self.num_envs, self.metadata, self.spec = envs, envs.num_envs, envs.metadata, envs.spec
        self.single_observation_space = envs.single_observation_space
        self.single_action_space = envs.single_action_space
        self.observation_space, self.action_space = envs.observation_space, envs.action_space
        self.notes = envs.notes if isinstance(envs, Simulator) else ()
        self._array = cast("Callable[[Tensor], object]", import_module(maker).from_dlpack)
        self._narrow = maker == "jax.numpy" and not import_module("jax").config.jax_enable_x64

    def __repr__(self) -> str:
        return repr(self.envs)

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[object, Info]:
        more = None if options is None else {name: self.array(value) for name, value in options.items()}
        return cast("tuple[object, Info]", self.tensors(self.envs.reset(seed=seed, options=more)))

    def step(self, actions: object) -> tuple[object, Tensor, Tensor, Tensor, Info]:
        found = self.envs.step(self.array(actions))
        return cast("tuple[object, Tensor, Tensor, Tensor, Info]", self.tensors(found))

    def tensors(self, found: Tree) -> tuple[object, ...]:
        """What a step or a reset returned, in tensors."""
        return cast("tuple[object, ...]", _mapped(found, _tensor))

    def array(self, value: Tree) -> Tree:
        """An action or a mask in the other library's arrays."""
        return _mapped(value, self._one_array)

    def _one_array(self, value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        # By default, JAX has no numbers of 64 bits.
        kind = NARROW.get(value.dtype, value.dtype) if self._narrow else value.dtype
        return self._array(value.detach().to(kind).contiguous())

    def close_extras(self, **kwargs: object) -> None:
        self.envs.close()


def _tensor(value: object) -> object:
    known = type(value).__module__.partition(".")[0] in MAKERS
    return as_tensor(cast(Foreign, value)) if known else value


def _mapped(tree: Tree, change: Callable[[object], object]) -> Tree:
    if isinstance(tree, Mapping):
        return {key: _mapped(part, change) for key, part in tree.items()}
    if isinstance(tree, (tuple, list)):
        return tuple(_mapped(part, change) for part in tree)
    return change(tree)


def bridged(envs: GymVectorEnv, obs: object, info: Info) -> tuple[GymVectorEnv, object, Info]:
    """(the env as one of tensors, what its first reset returned), unless it is of tensors or NumPy arrays already."""
    maker = maker_of(obs)
    if not maker:
        return envs, obs, info
    bridge = BridgedVectorEnv(envs, maker)
    found, told = bridge.tensors((obs, info))
    return bridge, found, cast("Info", told)
