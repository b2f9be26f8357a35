"""Isaac Lab's and mjlab's vector env contract."""

import gymnasium as gym
import numpy as np
import pytest
import torch

import surefoot
from surefoot.envs.lab_envs import LabVectorEnv
from surefoot.errors import EnvError, UsageError
from surefoot.training.build.envs import ready_envs
from tests.lab_envs import ManagerBasedRLEnv, ManagerBasedRlEnv

QUICK = {"rollout_length": 8, "seed": 0, "progress": False, "preset": None}
STILL = torch.zeros(4, 1)


def test_groups_become_a_dict_and_one_group_a_plain_observation():
    envs = LabVectorEnv(ManagerBasedRLEnv())
    assert list(envs.single_observation_space) == ["critic", "policy"]
    assert LabVectorEnv(ManagerBasedRLEnv(), groups=["policy"]).single_observation_space.shape == (1,)
    assert LabVectorEnv(ManagerBasedRlEnv()).single_observation_space["actor"].shape == (1,)
    with pytest.raises(UsageError, match="did you mean 'policy'"):
        LabVectorEnv(ManagerBasedRLEnv(), groups=["polcy"])


def test_actions_have_no_bounds_unless_asked_for():
    assert LabVectorEnv(ManagerBasedRLEnv()).single_action_space == gym.spaces.Box(-np.inf, np.inf, (1,))
    assert LabVectorEnv(ManagerBasedRlEnv()).single_action_space.high.tolist() == [np.inf]
    assert LabVectorEnv(ManagerBasedRLEnv(), clip_actions=2.0).single_action_space.high.tolist() == [2.0]
    with pytest.raises(UsageError, match="clip_actions=-1"):
        LabVectorEnv(ManagerBasedRLEnv(), clip_actions=-1)


def first_end(env, **how):
    """The steps before and at the first time limit."""
    envs = ready_envs(LabVectorEnv(env, groups=["critic"], **how), 1)
    obs = envs.reset().clone()
    for _ in range(5):
        before, step = obs, envs.step(STILL)
        obs = step.obs.clone()
    return before, step


def test_without_a_last_observation_the_one_before_stands_in():
    before, step = first_end(ManagerBasedRLEnv())
    assert step.truncated.all()
    assert torch.equal(step.final_obs, before)
    assert step.final_obs[:, 1].tolist() == [4.0] * 4
    assert step.obs[:, 1].tolist() == [0.0] * 4


def test_a_last_observation_in_the_extras_is_used():
    _, step = first_end(ManagerBasedRLEnv(final=True))
    assert step.final_obs[:, 1].tolist() == [5.0] * 4
    assert step.obs[:, 1].tolist() == [0.0] * 4


def test_mjlab_with_manual_resets_gives_true_last_observations():
    env = ManagerBasedRlEnv(auto_reset=False)
    _, step = first_end(env)
    assert step.final_obs[:, 1].tolist() == [5.0] * 4
    assert step.obs[:, 1].tolist() == [0.0] * 4
    assert env.resets == [None, [0, 1, 2, 3]]


def test_a_finite_horizon_makes_the_time_limit_an_end():
    _, step = first_end(ManagerBasedRLEnv(is_finite_horizon=True))
    assert step.terminated.all()
    assert not step.truncated.any()


def test_terminations_are_kept_apart_from_time_limits():
    envs = ready_envs(LabVectorEnv(ManagerBasedRLEnv()), 0)
    envs.reset()
    step = envs.step(torch.tensor([[3.0], [0.0], [3.0], [0.0]]))
    assert step.terminated.tolist() == [True, False, True, False]
    assert not step.truncated.any()


def test_it_is_seeded_once_and_wrappers_of_gymnasium_may_be_around_it():
    env = ManagerBasedRLEnv()
    env.spec = gym.envs.registration.EnvSpec("Isaac-Points-v0")
    lab = LabVectorEnv(gym.wrappers.OrderEnforcing(env))
    assert lab.spec.id == str(lab) == "Isaac-Points-v0"
    envs = ready_envs(lab, 5)
    envs.reset()
    envs.step(STILL)
    assert len(env.seeds) == 1


@pytest.mark.parametrize("env", [ManagerBasedRLEnv, ManagerBasedRlEnv, lambda: ManagerBasedRlEnv(auto_reset=False)])
def test_it_trains_with_a_critic_that_sees_more(env):
    run = surefoot.train(LabVectorEnv(env()), total_steps=64, critic_obs=["critic"], **QUICK)
    assert run.result["total_steps"] == 64
    said = (run.path / "log.txt").read_text()
    assert "only the critic sees: critic" in said
    manual = isinstance(env(), ManagerBasedRlEnv) and not env().cfg.auto_reset
    assert ("the value at a time limit is that of the observation before" in said) is not manual


def test_what_is_no_such_env_is_refused_with_what_it_lacks():
    with pytest.raises(UsageError, match=r"CartPoleEnv is not an env like those of .*: it has no num_envs, cfg"):
        LabVectorEnv(gym.make("CartPole-v1"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda obs, reward, ended, cut, extras: (obs, reward, ended, extras),
            "returned 4 values; it must return five",
        ),
        (lambda *found: (*found[:4], None), "returned the info None"),
        (lambda obs, *rest: ({name: x.numpy() for name, x in obs.items()}, *rest), "of type ndarray; .* be tensors"),
    ],
)
def test_a_step_against_the_contract_says_so(change, message):
    class Wrong(ManagerBasedRLEnv):
        def step(self, action):
            return change(*super().step(action))

    envs = ready_envs(LabVectorEnv(Wrong()), 1)
    envs.reset()
    with pytest.raises(EnvError, match=message):
        envs.step(STILL)
