"""Which observation and action spaces are supported; checked before an env is stepped or a network built."""

from __future__ import annotations

from gymnasium import spaces

from surefoot.errors import UsageError

SIMPLE = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
SUPPORTED = "supported are Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them"
REASONS: dict[type, str] = {
    spaces.Text: "which has no fixed size",
    spaces.Sequence: "which has no fixed size",
    spaces.Graph: "which has no fixed size",
    spaces.OneOf: "whose numbers mean something else with each choice",
}


def require_supported(space: object, what: str) -> None:
    """Raise a UsageError that names the first unsupported part. `what`: "observation" or "action"."""
    for path, part in _simple_parts(space, ""):
        if not isinstance(part, SIMPLE):
            raise unsupported(part, f"'{path}' of the {what} space" if path else f"the {what} space")


def unsupported(space: object, where: str) -> UsageError:
    if not isinstance(space, spaces.Space):
        found = "missing" if space is None else f"{space!r}, which is not a Gymnasium space"
        return UsageError(f"{where} is {found}; set it to a space from gymnasium.spaces ({SUPPORTED})")
    reason = next((said for kind, said in REASONS.items() if isinstance(space, kind)), "which is not Gymnasium's own")
    return UsageError(
        f"{where} is a {type(space).__name__}, {reason}; {SUPPORTED}. Wrap the env so that it uses one of these."
    )


def _simple_parts(space: object, path: str) -> list[tuple[str, object]]:
    """(path, space) of everything that is neither Dict nor Tuple, depth first."""
    inner: list[tuple[object, object]] = []
    if isinstance(space, spaces.Dict):
        inner = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        inner = list(enumerate(space.spaces))
    else:
        return [(path, space)]
    return [found for key, part in inner for found in _simple_parts(part, f"{path}/{key}" if path else str(key))]
