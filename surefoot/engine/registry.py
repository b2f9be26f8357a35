"""Chooses the engine of a run: the first in order that serves it, or the one that was named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from surefoot.engine.native.engine import HybridEngine, NativeEngine
from surefoot.engine.torch.engine import TorchEngine
from surefoot.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from surefoot.engine.contract import Engine, Learns
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.types import Envs

ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (NativeEngine, HybridEngine, TorchEngine)}
AUTO = "auto"


def get_engine(name: str) -> Engine:
    """Ours, or an installed package's (entry point `surefoot.engines`)."""
    if name in ENGINES:
        return ENGINES[name]()
    from importlib.metadata import entry_points

    others = {entry.name: entry for entry in entry_points(group="surefoot.engines")}
    if name in others:
        engine: Engine = others[name].load()()
        return engine
    known = [AUTO, *ENGINES, *others]
    raise UsageError(f"unknown engine '{name}'{did_you_mean(name, known)} (known: {', '.join(known)})")


def choose_engine(wanted: str, policy: ActorCritic, algorithm: Learns, envs: Envs) -> tuple[Engine, str]:
    """(the engine, why). One that was named and cannot serve is an error."""
    if wanted != AUTO:
        engine = get_engine(wanted)
        reason = engine.serves(policy, algorithm, envs)
        if reason is not None:
            raise UsageError(f"engine={wanted} cannot be had: {reason}; use --engine torch or auto")
        return engine, "as asked"
    reasons: list[str] = []
    for kind in ENGINES.values():
        engine = kind()
        reason = engine.serves(policy, algorithm, envs)
        if reason is None:
            return engine, "; ".join(words for words in (*reasons[:1], engine.brings(policy)) if words)
        reasons.append(reason)
    raise UsageError(f"no engine serves this policy: {'; '.join(reasons)}")


def uses_kernels(wanted: str) -> bool:
    """Whether compiled kernels may have a part in it, before there is a policy to ask about."""
    return wanted == AUTO or get_engine(wanted).may_use_kernels
