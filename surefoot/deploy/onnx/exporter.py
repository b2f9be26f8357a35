"""Exports to ONNX, checked in onnxruntime. Both are the extra `onnx`, and imported only when they are used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from surefoot.deploy import program as ops
from surefoot.deploy.exporter import Parity, Wish
from surefoot.deploy.onnx.random_inputs import RandomInputs
from surefoot.deploy.trials import NEAR_TIE, Expected, Trials, expected, scales
from surefoot.errors import SurefootError, UsageError

if TYPE_CHECKING:
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.types import Array


class Session(Protocol):
    """The part of onnxruntime's InferenceSession that is used."""

    def run(self, outputs: list[str], inputs: dict[str, Array]) -> list[Array]: ...


class OnnxExporter:
    tolerance = 1e-5
    checked_with = "onnxruntime"

    def __init__(self) -> None:
        missing = [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]
        if missing:
            raise UsageError(
                f"exporting to ONNX needs {' and '.join(missing)}; pip install 'surefoot[onnx]' (or onnx onnxruntime)"
            )

    def translate(self, program: ops.Program, wish: Wish) -> Mapping[str, bytes]:
        from onnx.checker import ValidationError

        from surefoot.deploy.onnx.model import build_model

        try:
            model: bytes = build_model(program, wish.about, drawn=wish.drawn).SerializeToString()
        except (ValidationError, ValueError) as error:  # two parts of a space under one name, a name that is no text
            raise SurefootError(f"this policy cannot be expressed as an ONNX model: {error}") from None
        return {f"{wish.name}.onnx": model}

    def check(self, folder: Path, program: ops.Program, policy: ActorCritic, trials: Trials, wish: Wish) -> Parity:
        random = None if wish.seed is None else RandomInputs.draw(program, trials.begins, wish.seed)
        draws = None if random is None else (lambda _: random.noise(program))
        wanted = expected(policy, program, trials, draws)
        params, action = _replay(_session(folder / f"{wish.name}.onnx"), program, trials, random)
        return _compare(program, wanted, params, action, self.tolerance + wanted.rounding)

    def sample(self, program: ops.Program, policy: ActorCritic, trials: Trials, wish: Wish) -> Mapping[str, bytes]:
        return {}


def _session(file: Path) -> Session:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session: Session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return session


def _replay(session: Session, program: ops.Program, trials: Trials, random: RandomInputs | None) -> tuple[Array, Array]:
    """(parameters, actions) of all sequences at once, a batch per step."""
    from surefoot.deploy.onnx.model import output_names

    sequences, length = trials.begins.shape
    names = [*output_names(program), "parameters", *([] if program.memory is None else ["memory_out"])]
    memory = np.zeros((sequences, program.memory_size), np.float32)
    params, actions = [], []
    for t in range(length):
        inputs = inputs_of(program, trials.rows[:, t])
        if program.memory is not None:
            inputs["memory"] = np.where(trials.begins[:, t, None], np.float32(0), memory)
        if random is not None:
            inputs["random"] = random.uniform[:, t]
        if random is not None and random.matrix is not None:
            inputs["exploration"] = random.matrix[:, t]
        found = dict(zip(names, session.run(names, inputs), strict=True))
        memory = found.get("memory_out", memory)
        params.append(found["parameters"])
        actions.append(np.concatenate([found[name].reshape(sequences, -1) for name in output_names(program)], axis=1))
    return np.stack(params, axis=1), np.stack(actions, axis=1).astype(np.float64)


def inputs_of(program: ops.Program, rows: Array) -> dict[str, Array]:
    """The model's inputs for packed rows `[n, …]`: every part of the observation as the env shows it."""
    from surefoot.deploy.onnx.model import input_dtype, input_name

    layout, found = program.layout, {}
    flat = rows.reshape(len(rows), -1)
    for leaf in layout.leaves:
        raw = flat[:, leaf.span] + np.reshape(leaf.start, -1) if leaf.sizes else flat[:, leaf.span]
        found[input_name(leaf)] = raw.reshape(len(rows), *leaf.shape).astype(input_dtype(leaf))
    if layout.mask is not None:
        found["action_mask"] = flat[:, layout.mask] > 0.5
    return found


def _compare(program: ops.Program, wanted: Expected, params: Array, action: Array, allowed: float) -> Parity:
    gap = np.abs(params - wanted.params) / np.maximum(1.0, np.abs(wanted.params))
    scale = np.array(scales(program))
    choice = scale == 0
    apart = np.abs(action - wanted.action)
    different = (apart[..., choice] > 0).any(axis=-1)
    tied = wanted.margin < NEAR_TIE
    far = apart[..., ~choice] / np.maximum(scale[~choice], np.abs(wanted.action[..., ~choice]))
    largest, furthest = float(gap.max()), float(far.max(initial=0.0))
    wrong = int((different & ~tied).sum()) + int((~np.isfinite(params)).any(axis=-1).sum())
    return Parity(
        observations=wanted.margin.size,
        parameters=largest,
        actions=furthest,
        ties=int((different & tied).sum()),
        wrong=wrong,
        rounding=wanted.rounding,
        allowed=allowed,
        passed=not wrong and largest <= allowed and furthest <= allowed,
    )
