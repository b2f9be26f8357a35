"""The spaces of a saved model, from what Stable-Baselines3 wrote about them for people to read."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from surefoot.errors import UsageError
from surefoot.policies.plans import geometry
from surefoot.schema import Misfit
from surefoot.spaces import plain
from surefoot.spaces.layout import Layout
from surefoot.spaces.of_gym import gym_space

if TYPE_CHECKING:
    from surefoot.types import GymSpace

LARGEST = 2**24  # numbers of one observation
NUMBER = re.compile(r"[-+]?(?:inf|nan|(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)")
DTYPES = ("float16", "float32", "float64", *(f"{kind}{size}" for kind in ("int", "uint") for size in (8, 16, 32, 64)))
# One part of a Dict space as Python prints it: 'key': Box(0, 255, (3, 36, 36), uint8), or ('key', Box(…)) before 3.12.
PART = re.compile(
    r"""\s*\(?(?P<key>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\s*[:,]\s*(?:
    Box\((?P<low>[^,]+),\s(?P<high>[^,]+),\s\((?P<shape>[\d,\s]*)\),\s(?P<dtype>\w+)\)
    |Discrete\((?P<n>\d+)(?:,\sstart=(?P<start>-?\d+))?\)
    |MultiDiscrete\((?P<nvec>[\[\]\d\s]+)(?:,\sstart=(?P<starts>[\[\]\d\s-]+))?\)
    |MultiBinary\((?P<bits>[\[\]()\d,\s]+)\)
    )\)?\s*(?:,|$)""",
    re.VERBOSE,
)


def read_space(found: object, name: str, *, bounds: bool = True) -> GymSpace:
    """The space that a table of the model's data describes. Without `bounds`, those of a Box may be wrong."""
    if not isinstance(found, Mapping):
        raise Misfit(f"its {name} is not described")
    kind = str(found.get(":type:")).rpartition(".")[2].rstrip("'>")
    if kind == "Box":
        shape = tuple(_whole(size, f"{name}._shape") for size in _listed(found.get("_shape"), name))
        return _box(str(found.get("low")), str(found.get("high")), shape, str(found.get("dtype")), name, bounds)
    if kind == "Discrete":
        return _discrete(_whole(found.get("n"), f"{name}.n"), _whole(found.get("start", 0), f"{name}.start"), name)
    if kind == "MultiDiscrete":
        return _multi_discrete(str(found.get("nvec")), str(found.get("start", "0")), name)
    if kind == "MultiBinary":
        return _multi_binary(str(found.get("n")), name)
    if kind == "Dict":
        return _dict(str(found.get("spaces")), name, bounds)
    raise UsageError(f"its {name} is a {kind}, which cannot be imported")


def _dict(text: str, name: str, bounds: bool) -> spaces.Dict:
    text = text.strip().removeprefix("OrderedDict(").removesuffix(")") if text.startswith("Ordered") else text.strip()
    inside, at, parts = text[1:-1], 0, list[tuple[str, "GymSpace"]]()
    while at < len(inside):
        part = PART.match(inside, at)
        if part is None:
            raise UsageError(f"its {name} has a part that cannot be imported: {inside[at : at + 60]}")
        key, at = str(ast.literal_eval(part["key"])), part.end()
        parts.append((key, _part(part, f"{name}.{key}", bounds)))
    if not parts or len({key for key, _ in parts}) < len(parts):
        raise Misfit(f"its {name} is not described")
    return spaces.Dict(parts)


def _part(part: re.Match[str], name: str, bounds: bool) -> GymSpace:
    if part["shape"] is not None:
        shape = tuple(_whole(size, name) for size in re.findall(r"\d+", part["shape"]))
        return _box(part["low"], part["high"], shape, part["dtype"], name, bounds)
    if part["n"] is not None:
        return _discrete(int(part["n"]), int(part["start"] or 0), name)
    if part["nvec"] is not None:
        return _multi_discrete(part["nvec"], part["starts"] or "0", name)
    return _multi_binary(part["bits"], name)


def _listed(value: object, name: str) -> list[object]:
    if not isinstance(value, list):
        raise Misfit(f"the shape of its {name} is not described")
    return value


def _whole(value: object, name: str) -> int:
    """NumPy's whole numbers were written as text."""
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"-?\d{1,18}", text):
        raise Misfit(f"its {name} is {text[:40]!r}, not a whole number")
    return int(text)


def _discrete(n: int, start: int, name: str) -> spaces.Discrete:
    if not 1 <= n <= LARGEST:
        raise Misfit(f"its {name} has {n} choices")
    if start:
        raise UsageError(f"its {name} starts at {start}; Stable-Baselines3 counts choices from 0 all the same")
    return spaces.Discrete(n)


def _multi_discrete(nvec: str, start: str, name: str) -> spaces.MultiDiscrete:
    sizes = [_whole(size, name) for size in re.findall(r"\d+", nvec)]
    if not sizes or "[[" in nvec or not all(1 <= size <= LARGEST for size in sizes):
        raise UsageError(f"its {name} is MultiDiscrete({nvec[:60]}), which cannot be imported")
    if re.search(r"[1-9]", start):
        raise UsageError(f"its {name} starts at {start[:40]}; Stable-Baselines3 counts choices from 0 all the same")
    return spaces.MultiDiscrete(sizes)


def _multi_binary(bits: str, name: str) -> spaces.MultiBinary:
    shape = [_whole(size, name) for size in re.findall(r"\d+", bits)]
    if not shape or not 1 <= math.prod(shape) <= LARGEST:
        raise Misfit(f"its {name} has no bits, or too many")
    return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)


def _box(low: str, high: str, shape: tuple[int, ...], dtype: str, name: str, bounds: bool) -> GymSpace:
    if dtype not in DTYPES or min(shape, default=1) < 1 or math.prod(shape) > LARGEST:
        raise Misfit(f"its {name} is a Box of shape {shape} and type {dtype[:20]}")
    sides = [_numbers(side, math.prod(shape)) for side in (low, high)]
    if None in sides and bounds:
        raise UsageError(f"the bounds of its {name} are not written out; name the env: --env ID")
    with np.errstate(all="ignore"):
        least, most = (np.broadcast_to(np.array(side or 0.0).astype(dtype), (math.prod(shape),)) for side in sides)
    return gym_space(plain.Box(least.reshape(shape), most.reshape(shape)))


def _numbers(text: str, count: int) -> list[float] | None:
    """The numbers of a printed array. A long one is printed in part; if all that is printed is equal, all of it is."""
    numbers = [float(number) for number in NUMBER.findall(text)]
    if len(set(numbers)) == 1:
        return numbers[:1]
    return numbers if len(numbers) == count else None


def require_same(theirs: GymSpace, ours: GymSpace, what: str) -> None:
    """UsageError unless the env's space is that of the model; images may have their channels last."""
    if isinstance(theirs, spaces.Dict) and isinstance(ours, spaces.Dict):
        if set(theirs.spaces) != set(ours.spaces):
            raise UsageError(f"the env's {what} has {sorted(ours.spaces)}, and the model's {sorted(theirs.spaces)}")
        for key, part in theirs.spaces.items():
            require_same(part, ours.spaces[key], f"{what} {key!r}")
        return
    if not _alike(theirs, ours, what):
        raise UsageError(f"the env's {what} is {ours}, but the model was made for {theirs}")


def _alike(theirs: GymSpace, ours: GymSpace, what: str) -> bool:
    if not isinstance(theirs, spaces.Box) or not isinstance(ours, spaces.Box):
        return bool(theirs == ours)
    if theirs.dtype != ours.dtype:
        return False
    if what.startswith("action"):  # they are clipped to the bounds; the printed ones have eight digits
        sides = ((theirs.low, ours.low), (theirs.high, ours.high))
        return theirs.shape == ours.shape and all(np.allclose(a, b, 1e-6, 1e-7) for a, b in sides)
    if theirs.shape == ours.shape:
        return True
    leaf = Layout(ours).leaves[0]
    return leaf.kind == "image" and geometry(leaf)[0] == theirs.shape
