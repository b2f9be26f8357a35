"""Chooses the engine of a run: the first that supports it, or the one that was named."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING

from surefoot.engine.contract import Engine
from surefoot.engine.names import AUTO, BUILT_IN, CUDA, GROUP, check_name
from surefoot.errors import UsageError
from surefoot.user_code import installed, is_from_python, load_entry, load_object, names_code, refuse_from_python

if TYPE_CHECKING:
    from surefoot.engine.contract import Learns
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.types import Envs

Wanted = str | type[Engine]  # a name, or the user's own class


class NotAvailable(UsageError):
    """The requested engine does not support this run."""


def engine_class(wanted: Wanted) -> type[Engine]:
    """A built-in engine, a package's (entry point `surefoot.engines`), or the user's own. Executes their code."""
    if not isinstance(wanted, str):
        return _checked(wanted, wanted.__name__)
    check_name(wanted)
    refuse_from_python(wanted, "engine")
    if wanted in BUILT_IN or names_code(wanted):
        return _checked(load_object(BUILT_IN.get(wanted, wanted), "engine"), wanted)
    return _checked(load_entry(installed(GROUP)[wanted], "engine"), wanted)


def _checked(found: object, name: str) -> type[Engine]:
    if not isinstance(found, type) or not issubclass(found, Engine):
        what = found.__name__ if isinstance(found, type) else f"a {type(found).__name__}"
        raise UsageError(f"engine={name} is {what}, not a class derived from surefoot.engine.contract.Engine")
    if inspect.isabstract(found):
        raise UsageError(f"engine={name} is not complete; it lacks {', '.join(sorted(found.__abstractmethods__))}")
    missing = [attribute for attribute in ("name", "acts_with") if not hasattr(found, attribute)]
    if missing:
        raise UsageError(f"engine={name} is not complete; set {' and '.join(missing)} in the class")
    return found


def get_engine(wanted: Wanted) -> Engine:
    return engine_class(wanted)()


def choose_engine(
    wanted: Wanted, policy: ActorCritic, algorithm: Learns, envs: Envs, before: Sequence[str] = ()
) -> tuple[Engine, str]:
    """(the engine, why). If a named engine does not support the run, that is an error.

    `before`: engines that a resumed run started with. They are tried first, so that its bytes stay the same.
    """
    if wanted != AUTO:
        engine = get_engine(wanted)
        reason = engine.serves(policy, algorithm, envs)
        if reason is not None:
            name = wanted if isinstance(wanted, str) else engine.name
            raise NotAvailable(f"engine={name} is not available: {reason}; use --engine torch or auto")
        return engine, "as asked"
    reasons: list[str] = []
    for engine in map(get_engine, BUILT_IN):
        reason = engine.serves(policy, algorithm, envs)
        if reason is None:
            break
        reasons.append(reason)
    else:
        raise UsageError(f"no engine serves this policy: {'; '.join(reasons)}")
    for earlier in map(get_engine, before):
        if earlier.name == engine.name:
            break
        if earlier.serves(policy, algorithm, envs) is None:
            return earlier, "as the run began"
    return engine, "; ".join(words for words in (*reasons[:1], engine.brings(policy)) if words)


def uses_kernels(wanted: Wanted) -> bool:
    """Whether compiled kernels may be used, as far as can be told before there is a policy."""
    if isinstance(wanted, str) and is_from_python(wanted):  # a run that is only evaluated
        return False
    return wanted == AUTO or engine_class(wanted).may_use_kernels


def steps_on_device(wanted: Wanted, before: Sequence[str] = ()) -> bool:
    """Whether envs may be stepped on the policy's GPU, as far as can be told before there is a policy.

    `before`: engines that a resumed run started with. If none of them does it, the run goes on as it began.
    """

    def possible(engine: Wanted) -> bool:
        return engine == CUDA or engine_class(engine).steps_on_device

    candidates: Sequence[Wanted] = tuple(BUILT_IN) if wanted == AUTO else (wanted,)
    return any(map(possible, candidates)) and (not before or any(map(possible, before)))
