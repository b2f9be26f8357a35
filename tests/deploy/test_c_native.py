"""Exported C against the native engine, which trained most of the policies that are exported."""

import shutil

import numpy as np
import pytest
import torch

from surefoot.deploy.c.compiling import STRICT, replay
from surefoot.deploy.c.exporter import CExporter, computed_params
from surefoot.deploy.c.replay import TOLERANCE, recording
from surefoot.deploy.exporter import Wish
from surefoot.deploy.trials import Expected, flat_action, least_margin, random_trials
from surefoot.policies.actor_critic import Noise
from tests.building import make_learner
from tests.deploy.making import CASES, make_case
from tests.marks import quick

SERVED = [case for case in CASES if case[0] in ("flat", "Dict", "Tuple", "discrete")]  # no learned encoder
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")


def played_by_the_kernels(policy, program, trials):
    actor = make_learner("native", policy).actor
    sequences, length = trials.begins.shape
    params, actions = [], []
    memory = policy.initial_memory(sequences)
    for t in range(length):
        rows = torch.from_numpy(np.ascontiguousarray(trials.rows[:, t]))
        start = torch.from_numpy(np.ascontiguousarray(trials.begins[:, t]))
        found = torch.empty(sequences, policy.actions.num_params)
        drawn = torch.empty((sequences, *policy.actions.shape), dtype=policy.actions.dtype)
        noise = Noise(policy.actions.noise((sequences,), torch.Generator().manual_seed(0)))
        actor.act(rows, noise, None if memory is None else start, memory, (found, drawn, torch.empty(sequences)))
        action = policy.actions.distribution(found).mode()
        params.append(found.numpy())
        actions.append(flat_action(policy.actions.to_vector_env(action.numpy()), sequences))
    together = np.stack(params, axis=1).astype(np.float64)
    return Expected(together, np.stack(actions, axis=1), least_margin(program, together), 0.0)


def name(number):
    return "-".join(map(str, SERVED[number]))


@pytest.mark.parametrize("number", quick(range(len(SERVED)), SERVED.index(("Dict", "hybrid", "lstm", True))), ids=name)
def test_c_does_what_the_kernels_do(number, tmp_path):
    policy, program = make_case(*SERVED[number])
    trials = random_trials(program, 10, 20, seed=5)
    wanted = played_by_the_kernels(policy, program, trials)
    for file, data in CExporter("gcc").translate(program, Wish()).items():
        (tmp_path / file).write_bytes(data)
    columns = computed_params(program, drawn=False)
    (tmp_path / "recording").write_bytes(recording(program, trials, wanted, columns))
    found = replay(tmp_path, "surefoot_policy", tmp_path / "recording", TOLERANCE, ["gcc"], STRICT)
    assert found.records == 200
    assert found.passed, found
