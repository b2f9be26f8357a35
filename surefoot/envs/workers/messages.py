"""Messages between a parent and its workers: one byte, followed by JSON if there is more to say."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

if TYPE_CHECKING:
    from surefoot.types import Array, Info

DEEPEST = 50  # maximum nesting of what is sent; deeper values are sent as reprs


class Described(TypedDict):
    """A worker's description of its envs, sent once they are made. The spaces are JSON."""

    observation_space: str
    action_space: str
    mask_size: int
    time_limit: int | None
    render_modes: list[str]


class Beyond(TypedDict):
    """The parts of a step that do not fit into the shared memory, by env."""

    infos: dict[int, Info]
    finals: dict[int, Array]


class Problem(TypedDict):
    """An error in a worker."""

    kind: str  # a class of `surefoot.errors`, or empty
    message: str
    traceback: str
    notes: list[str]


def encode(value: object, *, strict: bool = False, depth: int = 0) -> object:
    """JSON that `decode` turns back into the same plain data and arrays. Anything else: its repr, or TypeError."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind not in "OV":
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": [value.dtype.str, list(value.shape), data, isinstance(value, np.generic)]}
    if depth < DEEPEST and (type(value) is list or type(value) is tuple):
        items = [encode(item, strict=strict, depth=depth + 1) for item in value]
        return items if type(value) is list else {"tuple": items}
    if depth < DEEPEST and isinstance(value, dict):
        pairs = ((encode(key, strict=strict, depth=depth + 1), item) for key, item in value.items())
        return {"dict": [[key, encode(item, strict=strict, depth=depth + 1)] for key, item in pairs]}
    if strict:
        raise TypeError(f"{value!r} is a {type(value).__name__}")
    return repr(value)


def decode(data: object) -> Any:
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind == "tuple":
        return tuple(decode(item) for item in content)
    if kind == "dict":
        return {decode(key): decode(item) for key, item in content}
    dtype, shape, text, scalar = content
    array = np.frombuffer(base64.b64decode(text), dtype).reshape(shape).copy()
    return array[()] if scalar else array


def frame(tag: bytes, value: object = None) -> bytes:
    """A message: a tag byte and, if given, a value."""
    if value is None:
        return tag.lower()
    body = json.dumps(encode(value)).encode()
    return tag.upper() + len(body).to_bytes(8, "little") + body
