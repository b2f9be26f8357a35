"""Every algorithm with gSDE: the first ratio is 1, the noise is held, and a killed run resumes exactly."""

from itertools import product

import gymnasium as gym
import pytest
import torch

import surefoot
from surefoot.algorithms import ALGORITHMS
from surefoot.api import evaluate_run
from tests.combinations import settings
from tests.contracts.test_exact_resume import Die, same
from tests.contracts.test_exact_resume import settings as resume_settings
from tests.marks import quick


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("algo", "resample"), quick(product(ALGORITHMS, [None, 5]), ("ppo", 5), ("trpo", None), ("a2c", None))
)
def test_on_pendulum(algo, resample, tmp_path):
    how = {**resume_settings(algo), "std": "gsde", "sde_resample": resample, "log_std_init": -0.5}
    whole = surefoot.train("Pendulum-v1", algo, run_dir=tmp_path / "whole", **how)
    # A log-probability of magnitude 8 to 16 is rounded to 1e-6; rollout and update may round it differently.
    assert all(row["ratio_error"] <= 4e-6 for row in whole.metrics)
    die = Die(whole.result["updates"] * 2 // 3)
    with pytest.raises(KeyboardInterrupt):
        surefoot.train("Pendulum-v1", algo, run_dir=tmp_path / "killed", callbacks=[die], **how)
    same(surefoot.resume(tmp_path / "killed", progress=False), whole)


CASES = [
    {"algo": "ppo", "observation": "Dict", "action": "hybrid", "memory": "gru", "masked": True},
    {"algo": "trpo", "observation": "nested", "action": "hybrid", "memory": "none", "masked": True},
    {"algo": "a2c", "observation": "image", "action": "Box", "memory": "none", "masked": False},
    {"algo": "npg", "observation": "flat", "action": "Box", "memory": "lstm", "masked": False},
    {"algo": "ppo-penalty", "observation": "Tuple", "action": "hybrid", "memory": "none", "masked": False},
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bounds", ["clip", "tanh"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['algo']}-{case['action']}-{case['memory']}")
def test_with_memory_masks_and_hybrid_actions(case, bounds, tmp_path):
    if "surefoot/Any-v0" not in gym.registry:
        gym.register("surefoot/Any-v0", entry_point="tests.combinations:make")
    how = {**settings(case), "std": "gsde", "sde_resample": 4, "action_bounds": bounds}
    whole = surefoot.train("surefoot/Any-v0", case["algo"], run_dir=tmp_path / "whole", **how)
    assert all(row["ratio_error"] <= 1e-6 for row in whole.metrics)
    with pytest.raises(KeyboardInterrupt):
        surefoot.train(
            "surefoot/Any-v0",
            case["algo"],
            run_dir=tmp_path / "killed",
            callbacks=[Die(2)],
            checkpoint_every=1,
            **how,
        )
    resumed = surefoot.resume(tmp_path / "killed", progress=False)
    assert resumed.directory.metrics.read_bytes() == whole.directory.metrics.read_bytes()
    evaluations = [evaluate_run(whole, episodes=5, deterministic=False)[0] for _ in range(2)]
    assert evaluations[0] == evaluations[1]


def test_a_rollout_has_one_function_of_the_state_per_env_and_another_comes_after_it():
    """(a − mean) as a linear map of the features: E can be solved for from F states, and explains the others."""
    solved = []

    class Check(surefoot.Callback):
        def on_rollout(self, trainer, rollout):
            policy = trainer.policy
            with torch.no_grad():
                features = policy.actor.hidden(rollout.inputs[:-1]).double()  # [T, N, F]
                noise = (rollout.action - rollout.dist_params.chunk(2, -1)[0]).double()
                constant = torch.full((*features.shape[:-1], 1), 1e-3, dtype=torch.float64)
                features = torch.cat([features, constant], -1)
            for n in range(noise.shape[1]):
                found = torch.linalg.lstsq(features[:40, n], noise[:40, n], driver="gelsd").solution
                torch.testing.assert_close(features[40:, n] @ found, noise[40:, n], rtol=0.0, atol=1e-3)
                solved.append(found)

    how = {"preset": "none", "progress": False, "seed": 0, "num_envs": 2, "rollout_length": 80, "total_steps": 320}
    surefoot.train("Pendulum-v1", std="gsde", hidden_sizes=(4,), callbacks=[Check()], eval_episodes=0, **how)
    assert len(solved) == 4
    assert all((solved[i] - solved[j]).norm() > 0.1 for i in range(4) for j in range(i))
