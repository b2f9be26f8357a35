"""Every algorithm with every kind of observation, action, memory and mask: a few updates, in pairs of all of them."""

import gymnasium as gym
import numpy as np
import pytest
import torch

import surefoot
from surefoot.runs.checkpoints import find_checkpoint
from surefoot.types import Context
from tests.combinations import covering_array, settings
from tests.contracts.test_exact_resume import Die
from tests.marks import quick

ID = "surefoot/Any-v0"
CASES = covering_array()


@pytest.fixture(autouse=True)
def _registered():
    if ID not in gym.registry:
        gym.register(ID, entry_point="tests.combinations:make")


def name(case):
    return "-".join(str(value) if key != "masked" else ("mask" if value else "free") for key, value in case.items())


@pytest.mark.parametrize("case", quick(CASES, *CASES[::3]), ids=name)  # every third: the pairs of all are slow tests
def test_it_trains_acts_within_its_space_and_resumes_exactly(case, tmp_path):
    how = settings(case)
    whole = surefoot.train(ID, case["algo"], run_dir=tmp_path / "whole", **how)
    rows = whole.metrics
    assert len(rows) >= 2
    assert all(row["ratio_error"] <= 1e-6 for row in rows)
    assert all(np.isfinite(row["entropy"]) for row in rows)
    die = Die(2)
    with pytest.raises(KeyboardInterrupt):
        surefoot.train(ID, case["algo"], run_dir=tmp_path / "killed", callbacks=[die], checkpoint_every=1, **how)
    resumed = surefoot.resume(tmp_path / "killed", progress=False)
    assert resumed.directory.metrics.read_bytes() == whole.directory.metrics.read_bytes()
    left, right = (find_checkpoint(run.directory.checkpoints)[0] for run in (whole, resumed))
    assert (left / "policy.safetensors").read_bytes() == (right / "policy.safetensors").read_bytes()
    assert resumed.result["eval"] == whole.result["eval"]


@pytest.mark.parametrize("case", CASES[::5], ids=name)
def test_a_loaded_agent_acts_on_one_and_on_many_observations(case, tmp_path):
    run = surefoot.train(ID, case["algo"], run_dir=tmp_path / "run", **settings(case))
    agent = surefoot.load(run)
    env = gym.make(ID, disable_env_checker=True, **settings(case)["env_kwargs"])
    obs, info = env.reset(seed=0)
    state = None
    for _ in range(3):
        action, state = agent.predict(obs, state, None, True, info.get("action_mask"))
        assert env.action_space.contains(action)
        obs, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            break
    batch = gym.vector.utils.batch_space(env.observation_space, 5)
    actions, states = agent.predict(batch.sample(), deterministic=False)
    each = list(gym.vector.utils.iterate(gym.vector.utils.batch_space(env.action_space, 5), actions))
    assert len(each) == 5
    assert all(env.action_space.contains(action) for action in each)
    assert (states is None) == (case["memory"] == "none")


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("algo", ["ppo", "trpo"])
def test_the_recurrent_update_equals_a_recomputation_step_by_step(kind, algo):
    """Parameters of π and V of a whole rollout, from the stored first memory, against one step after the other."""
    checked = []

    class Check(surefoot.Callback):
        def on_rollout(self, trainer, rollout):
            policy = trainer.policy
            steps, envs = rollout.reward.shape
            with torch.no_grad():
                batch = trainer.algorithm.estimate(rollout)
                params = policy.action_params(batch.obs, batch.context).view(steps, envs, -1)
                memory, value = rollout.context.memory, []
                for t in range(steps):
                    row, memory = policy.step(rollout.inputs[t], memory, rollout.context.start[t])
                    torch.testing.assert_close(row, params[t], rtol=0, atol=1e-6)
                    torch.testing.assert_close(row, rollout.dist_params[t], rtol=0, atol=1e-6)
                    value.append(memory)
                some = torch.tensor([2, 0])
                part = batch.take(some)
                again = policy.action_params(part.obs, part.context).view(steps, 2, -1)
                torch.testing.assert_close(again, params[:, some], rtol=0, atol=1e-6)
                # V of a final observation goes on from the memory before the reset.
                for index, inputs, before in zip(
                    rollout.final_index, rollout.final_inputs, rollout.final_memory, strict=True
                ):
                    t, n = divmod(int(index), envs)
                    torch.testing.assert_close(value[t][n], before, rtol=0, atol=1e-6)
                    v = policy.value(inputs[None], Context(torch.zeros(1, 1, dtype=torch.bool), before[None]))[0]
                    assert float(v) == pytest.approx(float(rollout.next_value[t, n]), abs=1e-6)
                checked.append(int(rollout.context.start[1:].sum()))

    case = {"algo": algo, "observation": "Dict", "action": "hybrid", "memory": kind, "masked": True}
    surefoot.train(ID, algo, callbacks=[Check()], **settings(case))
    assert len(checked) >= 3
    assert sum(checked) > 10  # episodes did begin inside
