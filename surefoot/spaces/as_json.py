"""Spaces as JSON, so that a saved policy can be loaded without its environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from surefoot.errors import UsageError


def space_to_json(space: spaces.Space[Any]) -> dict[str, Any]:
    if isinstance(space, spaces.Box):
        # repr of a number is exact, and "inf" is no JSON number.
        low, high = ([repr(x) for x in side.reshape(-1).tolist()] for side in (space.low, space.high))
        return {
            "type": "Box",
            "shape": list(space.shape),
            "dtype": str(space.dtype),
            "low": low,
            "high": high,
        }
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    raise UsageError(f"spaces of {type(space).__name__} cannot be saved yet")


def space_from_json(data: dict[str, Any]) -> spaces.Space[Any]:
    if data["type"] == "Box":
        dtype = np.dtype(data["dtype"])
        number = float if dtype.kind == "f" else int
        low, high = (
            np.array([number(x) for x in data[side]], dtype).reshape(data["shape"]) for side in ("low", "high")
        )
        return spaces.Box(low, high, tuple(data["shape"]), dtype.type)
    if data["type"] == "Discrete":
        return spaces.Discrete(data["n"], start=data["start"], dtype=np.dtype(data["dtype"]).type)
    raise UsageError(f"unknown kind of space in the checkpoint: {data['type']!r}")
