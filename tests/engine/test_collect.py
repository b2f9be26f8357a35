"""The rollout loop, on envs whose every number is known."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from surefoot.envs.gym_envs import GymEnvs, SeededEpisodes
from surefoot.envs.vector_envs import VectorEnvs
from surefoot.errors import EnvError
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from tests import building


class Counter(gym.Env):
    """Observes its own step count; pays it as reward; ends after `length` steps in the given manner."""

    observation_space = spaces.Box(-1.0, 1e6, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length=3, ends="terminated"):
        self.length, self.ends, self.t = length, ends, 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.observe(), {}

    def observe(self):
        return np.array([self.t], np.float32)

    def step(self, action):
        self.t += 1
        over = self.t == self.length
        return (
            self.observe(),
            float(self.t),
            over and self.ends in ("terminated", "both"),
            over and self.ends in ("truncated", "both"),
            {"is_success": self.t >= 3, "note": "text"},
        )


def make_collector(envs, length, **kwargs):
    torch.manual_seed(0)
    policy = ActorCritic(envs.observation_space, envs.action_space, PolicyConfig())
    return building.make_collector(envs, policy, length, **kwargs)


def counters(num_envs=1, **kwargs):
    return GymEnvs(lambda: Counter(**kwargs), num_envs, 0)


def values_of(collector, observations):
    """V of raw observations, one at a time: the slow truth."""
    with torch.no_grad():
        return torch.tensor([collector.policy.value(torch.tensor([[float(o)]])).item() for o in observations])


def test_observations_actions_and_rewards_are_stored_in_time_order():
    rollout = make_collector(counters(), 5).collect()
    assert rollout.obs.flatten().tolist() == [0, 1, 2, 0, 1, 2]
    assert rollout.reward.flatten().tolist() == [1, 2, 3, 1, 2]
    assert rollout.terminated.flatten().tolist() == [False, False, True, False, False]
    assert not rollout.truncated.any()
    assert rollout.num_steps == 5


def test_the_next_rollout_goes_on_where_the_last_one_stopped():
    collector = make_collector(counters(), 2)
    assert collector.collect().obs.flatten().tolist() == [0, 1, 2]
    assert collector.collect().obs.flatten().tolist() == [2, 0, 1]


def test_a_truncated_step_bootstraps_from_its_final_observation():
    collector = make_collector(counters(ends="truncated"), 4)
    rollout = collector.collect()
    # After step 2 the env shows 3 (final) and then 0 (reset): V(3) counts, V(0) does not.
    torch.testing.assert_close(rollout.next_value.flatten(), values_of(collector, [1, 2, 3, 1]))
    torch.testing.assert_close(rollout.value.flatten(), values_of(collector, [0, 1, 2, 0]))


def test_a_truncation_on_the_last_step_counts_once():
    collector = make_collector(counters(ends="truncated"), 3)
    rollout = collector.collect()
    torch.testing.assert_close(rollout.next_value.flatten(), values_of(collector, [1, 2, 3]))
    assert rollout.final_index.tolist() == [2]
    assert collector.collect().obs[0].item() == 0


def test_terminated_and_truncated_together_keep_no_final_value():
    rollout = make_collector(counters(ends="both"), 3).collect()
    assert rollout.final_index.numel() == 0
    assert rollout.terminated[2].item()


def test_log_probabilities_are_those_of_the_policy_that_acted():
    collector = make_collector(counters(4), 6)
    rollout = collector.collect()
    outputs = collector.policy.evaluate(rollout.inputs[:-1].flatten(0, 1), rollout.action.flatten())
    torch.testing.assert_close(outputs.log_prob.detach(), rollout.log_prob.flatten(), rtol=0, atol=1e-6)


def test_the_three_autoreset_modes_give_the_same_transitions():
    found = {}
    for mode in AutoresetMode:
        make = [lambda i=i: SeededEpisodes(Counter(2 + i, "truncated"), 0, i) for i in range(2)]
        collector = make_collector(VectorEnvs(SyncVectorEnv(make, autoreset_mode=mode), 0), 12)
        rollout = collector.collect()
        for env in range(2):
            keep = rollout.valid[:, env]
            columns = (rollout.obs[:-1, env, 0], rollout.reward[:, env], rollout.next_value[:, env])
            rows = torch.stack([column[keep] for column in columns])[:, :8]
            assert torch.equal(rows, found.setdefault(env, rows)), mode
        assert rollout.valid.all() == (mode is not AutoresetMode.NEXT_STEP)
        lengths = {episode.length for episode in collector.tracker.take()}
        assert lengths == {2, 3}


def test_fake_steps_enter_neither_the_step_count_nor_the_statistics():
    make = [lambda: Counter(2, "terminated")]
    collector = make_collector(VectorEnvs(SyncVectorEnv(make, autoreset_mode=AutoresetMode.NEXT_STEP), 0), 6)
    rollout = collector.collect()
    assert rollout.valid.flatten().tolist() == [True, True, False, True, True, False]
    assert rollout.num_steps == 4
    assert rollout.obs[:-1][rollout.valid].flatten().tolist() == [0, 1, 0, 1]
    assert [(e.ret, e.length) for e in collector.tracker.take()] == [(3.0, 2), (3.0, 2)]


def test_whole_episodes_are_collected_from_every_env():
    envs = GymEnvs(iter([lambda: Counter(2), lambda: Counter(5)][i]() for i in range(2)).__next__, 2, 0)
    collector = make_collector(envs, 5, episodes_per_env=1)
    rollout = collector.collect()
    assert rollout.valid.sum(0).tolist() == [2, 5]
    assert rollout.reward.sum(0).tolist() == [3.0, 15.0]
    assert len(rollout.reward) == 5
    again = collector.collect()
    assert again.obs[0].flatten().tolist() == [0, 0]
    assert again.valid.sum(0).tolist() == [2, 5]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_whole_episodes_of_a_vector_env_in_any_mode(mode):
    make = [lambda i=i: Counter(2 + i, "truncated") for i in range(2)]
    collector = make_collector(VectorEnvs(SyncVectorEnv(make, autoreset_mode=mode), 0), 3, episodes_per_env=3)
    for _ in range(2):
        rollout = collector.collect()
        assert rollout.valid.sum(0).tolist() == [6, 9]
        assert rollout.obs[0].flatten().tolist() == [0, 0]
        assert sorted(e.length for e in collector.tracker.take()) == [2, 2, 2, 3, 3, 3]


def test_whole_episodes_stop_as_soon_as_all_envs_are_done():
    collector = make_collector(counters(3, length=2), 100, episodes_per_env=3)
    rollout = collector.collect()
    assert len(rollout.reward) == 6
    assert rollout.valid.all()


def test_an_episode_beyond_the_declared_limit_is_an_error():
    with pytest.raises(EnvError, match="limit of 3 steps"):
        make_collector(counters(length=10), 3, episodes_per_env=1).collect()


def test_reset_each_rollout_makes_the_horizon_a_truncation():
    collector = make_collector(counters(length=10), 4, reset_each_rollout=True)
    for _ in range(2):
        rollout = collector.collect()
        assert rollout.obs.flatten().tolist() == [0, 1, 2, 3, 4]
        assert rollout.truncated.flatten().tolist() == [False, False, False, True]
        torch.testing.assert_close(rollout.next_value[-1], values_of(collector, [4]))
        assert [(e.ret, e.length) for e in collector.tracker.take()] == [(10.0, 4)]


def test_an_episode_begun_late_and_cut_by_the_horizon_is_not_reported():
    collector = make_collector(counters(length=3), 4, reset_each_rollout=True)
    collector.collect()
    assert [e.length for e in collector.tracker.take()] == [3]


def test_reward_scale_touches_learning_and_not_the_reported_return():
    collector = make_collector(counters(), 3, reward_scale=0.1)
    assert collector.collect().reward.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert [e.ret for e in collector.tracker.take()] == [6.0]


def test_normalised_rewards_are_divided_by_the_spread_of_the_discounted_return():
    collector = make_collector(counters(), 3, reward_gamma=0.5)
    # G = 1, 2.5, 4.25; population variance of those
    spread = np.std([1.0, 2.5, 4.25])
    assert collector.collect().reward.flatten().tolist() == pytest.approx((np.array([1, 2, 3]) / spread).tolist())


def test_numbers_of_info_are_kept_by_name():
    collector = make_collector(counters(), 6, log_info=["is_success"])
    collector.collect()
    assert [e.info for e in collector.tracker.take()] == [{"is_success": 1.0}] * 2


def test_the_normaliser_is_frozen_while_collecting():
    envs = counters(2)
    policy = ActorCritic(envs.observation_space, envs.action_space, PolicyConfig(normalize_observations=True))
    collector = building.make_collector(envs, policy, 8)
    collector.collect()
    assert policy.normalizer.count.item() == 0.0


def test_collecting_is_reproducible_and_depends_on_the_seed():
    def actions(seed):
        envs = GymEnvs(lambda: gym.make("CartPole-v1"), 2, seed)
        torch.manual_seed(0)
        policy = ActorCritic(envs.observation_space, envs.action_space, PolicyConfig())
        return building.make_collector(envs, policy, 64, seed=seed).collect().obs

    assert torch.equal(actions(0), actions(0))
    assert not torch.equal(actions(0), actions(1))
