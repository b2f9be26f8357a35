"""JSON that every browser can read, whatever a run's files hold: NaN, half a character, very deep nesting."""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.responses import JSONResponse

DEEPEST = 40  # levels of nesting that are sent; our own files have three


class Reply(JSONResponse):
    def render(self, content: Any) -> bytes:
        return to_json(content).encode(errors="replace")  # file names and JSON may hold halves of characters


def to_json(value: object) -> str:
    """NaN and infinity, which JSON does not have, become null."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return json.dumps(_tame(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _tame(value: object, depth: int = 0) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if not isinstance(value, (dict, list, tuple)):
        return value
    if depth == DEEPEST:
        return "…"
    if isinstance(value, dict):
        return {str(name): _tame(inner, depth + 1) for name, inner in value.items()}
    return [_tame(inner, depth + 1) for inner in value]


def problem(why: str, status: int = 404) -> Reply:
    """An answer that the page shows as it is."""
    return Reply({"error": why}, status)
