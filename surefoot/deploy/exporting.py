"""`surefoot export`: translates a run's policy, checks the result, and only then writes it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from surefoot import __version__
from surefoot.deploy.describe import read_program
from surefoot.deploy.exporter import Exporter, Parity, Wish, working_folder
from surefoot.deploy.size import multiplications
from surefoot.deploy.trials import Trials, narrowed, random_trials
from surefoot.engine.torch_threads import torch_threads
from surefoot.envs.playing import play
from surefoot.errors import SurefootError, UsageError
from surefoot.runs.files import fsync_directory, write_all_durable
from surefoot.training.evaluation.actor import PolicyActor
from surefoot.training.evaluation.agent import Agent
from surefoot.training.evaluation.evaluate import open_envs, step_limit
from surefoot.training.loop.state import load_policy

if TYPE_CHECKING:
    from surefoot.training.evaluation.actor import SeenEnvs
    from surefoot.training.evaluation.evaluate import MakeEnv, OpenEnvs
    from surefoot.types import Actions, Array

SEQUENCES = 16
OBSERVATIONS, FEWER = 4096, 2048  # per kind; the smaller number is for networks with much to compute
MUCH = 2_000_000  # multiplications for one observation
SAMPLE = 4 * 2**20  # bytes of the recording that is kept with the export, at most
RECORD = "parity.json"


@dataclass(frozen=True)
class Exported:
    folder: Path
    files: tuple[str, ...]
    parity: Mapping[str, Parity]  # by kind of observations: recorded, random
    notes: tuple[str, ...]


def export_policy(
    checkpoint: Path,
    exporter: Exporter,
    out: Path,
    wish: Wish,
    *,
    make: Callable[[], MakeEnv],
    manifest: bytes,
    seed: int = 0,
) -> Exported:
    """Write the policy of `checkpoint` to the folder `out`. SurefootError, and nothing written, if the check fails.

    `make`: gives what makes the env to record observations in; if it raises a SurefootError, only random ones are
    tried. `manifest`: that of the run.
    """
    program, policy = read_program(checkpoint), load_policy(checkpoint)
    files = dict(exporter.translate(program, wish))
    kinds, notes = {}, []
    length = (FEWER if multiplications(program) > MUCH else OBSERVATIONS) // SEQUENCES
    agent = Agent(policy)
    try:
        with torch_threads(1):
            envs = open_envs(agent, make(), SEQUENCES, seed)
    except SurefootError as error:
        notes.append(f"the env cannot be made here, so only random observations were tried: {error}")
    else:
        seen = recorded_trials(agent, envs, length, seed)
        kinds["recorded"] = Trials(narrowed(program, seen.rows), seen.begins)
    kinds["random"] = random_trials(program, SEQUENCES, length, seed)
    with working_folder() as place:
        for name, data in files.items():
            (place / name).write_bytes(data)
        found = {kind: exporter.check(place, program, policy, each, wish) for kind, each in kinds.items()}
    _require_passed(found)
    files |= exporter.sample(program, policy, _some(kinds.get("recorded", kinds["random"])), wish)
    files["run_manifest.json"] = manifest
    files[RECORD] = _record(checkpoint, exporter, wish, found)
    _write(out, files)
    return Exported(out, tuple(files), found, tuple(notes))


def _require_passed(found: Mapping[str, Parity]) -> None:
    failed = {kind: each for kind, each in found.items() if not each.passed}
    if failed:
        kind, worst = next(iter(failed.items()))
        raise SurefootError(
            f"the exported policy does not act like the run's own, so nothing was written. On {worst.observations:,} "
            f"{kind} observations: parameters differ by up to {worst.parameters:.2g}, actions by {worst.actions:.2g} "
            f"(allowed is {worst.allowed:.2g}), and {worst.wrong} choices are wrong"
        )


def _record(checkpoint: Path, exporter: Exporter, wish: Wish, found: Mapping[str, Parity]) -> bytes:
    facts = {
        "surefoot": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "checkpoint": checkpoint.name,
        "stochastic": wish.drawn,
        "seed": wish.seed,
        "checked_with": exporter.checked_with,
        "tolerance": exporter.tolerance,
        "parity": {kind: asdict(each) for kind, each in found.items()},
    }
    return (json.dumps(facts, indent=2) + "\n").encode()


def _write(out: Path, files: Mapping[str, bytes]) -> None:
    """All files or none of them. RECORD is replaced last, so that it never stands beside files of another export."""
    if out.is_symlink():
        raise UsageError(f"{out} is a link; name a folder with --out")
    new = not out.exists()
    beside = {name: out / f".tmp-{name}-{os.getpid()}" for name in files}
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_all_durable({beside[name]: data for name, data in files.items()})
        (out / RECORD).unlink(missing_ok=True)
        for name in sorted(files, key=lambda each: each == RECORD):
            os.replace(beside[name], out / name)
        fsync_directory(out)
    except OSError as error:
        raise UsageError(f"cannot write to {out}: {error.strerror}; choose another --out") from None
    finally:
        with suppress(OSError):
            for path in beside.values():
                path.unlink(missing_ok=True)
            if new:
                out.rmdir()  # which succeeds if nothing was written


def _some(trials: Trials) -> Trials:
    """The first steps of each trial, as many as fit into the sample."""
    length = max(1, min(64, SAMPLE // trials.rows[:, 0].nbytes))
    return Trials(trials.rows[:, :length], trials.begins[:, :length])


class _Recorder:
    """Acts with the policy and keeps what it sees."""

    def __init__(self, actor: PolicyActor) -> None:
        self.actor = actor
        self.seen: dict[int, list[tuple[Array, bool]]] = {}

    def act(self, envs: SeenEnvs, rows: Array, begins: Array) -> Actions:
        for row, starts in zip(rows.tolist(), begins.tolist(), strict=True):
            self.seen.setdefault(row, []).append((envs.observations[row].copy(), starts))
        return self.actor.act(envs, rows, begins)


def recorded_trials(agent: Agent, opened: OpenEnvs, length: int, seed: int) -> Trials:
    """What the policy sees in its envs, `length` steps in each. Closes them."""
    recorder = _Recorder(PolicyActor(agent, seed, deterministic=True))
    with torch_threads(1), closing(opened) as envs:
        limit = step_limit(None, envs.time_limit)
        for turn in play(envs, recorder, range(SEQUENCES * length), limit=limit):
            if turn.step is not None and min(map(len, recorder.seen.values())) >= length:
                break
    shortest = min(map(len, recorder.seen.values()))
    rows = np.stack([np.stack([row for row, _ in seen[:shortest]]) for seen in recorder.seen.values()])
    begins = np.array([[starts for _, starts in seen[:shortest]] for seen in recorder.seen.values()])
    begins[:, 0] = True
    return Trials(rows.astype(agent.policy.layout.dtype), begins)


def exporters() -> dict[str, Callable[[], Exporter]]:
    """By the name that `--to` takes."""
    from surefoot.deploy.c.exporter import CExporter
    from surefoot.deploy.onnx.exporter import OnnxExporter

    return {"c": CExporter, "onnx": OnnxExporter}
