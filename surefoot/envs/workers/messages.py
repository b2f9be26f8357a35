"""Messages between a parent and its workers: one byte, followed by JSON if there is more to say."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

DEEPEST = 50  # nesting of what is sent; below it, only reprs


def encode(value: Any, *, strict: bool = False, depth: int = 0) -> Any:
    """JSON that `decode` turns back into the same plain data and arrays. Anything else: its repr, or TypeError."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind not in "OV":
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": [value.dtype.str, list(value.shape), data, isinstance(value, np.generic)]}
    if depth < DEEPEST and type(value) in (list, tuple):
        items = [encode(item, strict=strict, depth=depth + 1) for item in value]
        return items if type(value) is list else {"tuple": items}
    if depth < DEEPEST and isinstance(value, dict):
        pairs = ((encode(key, strict=strict, depth=depth + 1), item) for key, item in value.items())
        return {"dict": [[key, encode(item, strict=strict, depth=depth + 1)] for key, item in pairs]}
    if strict:
        raise TypeError(f"{value!r} is a {type(value).__name__}")
    return repr(value)


def decode(data: Any) -> Any:
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


def frame(tag: bytes, value: Any = None) -> bytes:
    """A byte that says what it is, and what belongs to it, if anything does."""
    if value is None:
        return tag.lower()
    body = json.dumps(encode(value)).encode()
    return tag.upper() + len(body).to_bytes(8, "little") + body
