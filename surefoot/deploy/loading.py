"""`surefoot.load`: the agent of a run, for PyTorch or for NumPy alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from surefoot.errors import UsageError
from surefoot.runs.directory import RunDirectory
from surefoot.runs.locate import locate_checkpoint
from surefoot.runs.run import Run

if TYPE_CHECKING:
    from surefoot.deploy.light_agent import LightAgent
    from surefoot.policies.user_encoder import EncoderClass
    from surefoot.training.evaluation.agent import Agent


@overload
def load(
    run: Run | RunDirectory | str | Path,
    checkpoint: str | int = ...,
    *,
    encoder: EncoderClass | None = ...,
    trust: bool = ...,
    backend: Literal["torch"] = ...,
) -> Agent: ...


@overload
def load(
    run: Run | RunDirectory | str | Path,
    checkpoint: str | int = ...,
    *,
    encoder: None = ...,
    trust: bool = ...,
    backend: Literal["numpy"],
) -> LightAgent: ...


def load(
    run: Run | RunDirectory | str | Path,
    checkpoint: str | int = "latest",
    *,
    encoder: EncoderClass | None = None,
    trust: bool = False,
    backend: Literal["torch", "numpy"] = "torch",
) -> Agent | LightAgent:
    """The agent of a run: from its `latest` checkpoint, its `best`, or a step; or from one checkpoint's directory.

    Executes no code from the run and needs no env. A policy with a custom encoder needs its class, as `encoder`, or
    `trust=True`, which executes the file or module that the run names; your own runs need neither. `backend="numpy"`
    gives an agent that starts in a fraction of a second and imports neither PyTorch nor Gymnasium; it has `predict`.
    """
    source = run.path if isinstance(run, (Run, RunDirectory)) else run
    if backend == "numpy":
        if encoder is not None:
            raise UsageError("backend='numpy' cannot use an encoder, which is a PyTorch module; drop one of the two")
        from surefoot.deploy.describe import read_program
        from surefoot.deploy.light_agent import LightAgent

        return LightAgent(read_program(locate_checkpoint(source, str(checkpoint))[0]))
    if backend != "torch":
        raise UsageError(f"backend={backend!r} is not one of: torch, numpy")
    from surefoot.training.build.own_encoders import EncoderCode, check_encoder
    from surefoot.training.evaluation.agent import Agent
    from surefoot.training.loop.state import load_policy

    given = None if encoder is None else check_encoder(encoder, str(encoder))
    return Agent(load_policy(locate_checkpoint(source, str(checkpoint))[0], EncoderCode(given, trust)))
