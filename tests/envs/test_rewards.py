import numpy as np
import pytest

from surefoot.envs.rewards import RewardNormalizer


def column(*values, dtype=float):
    return np.array(values, dtype)[:, None]


def flags(*values):
    return column(*values, dtype=bool)


def test_by_hand():
    normalizer = RewardNormalizer(1, gamma=0.5)
    normalizer.observe(column(2.0, 4.0, 6.0), flags(False, True, False), flags(True, True, True))
    # G: 2;  0.5·2 + 4 = 5, then the episode ends;  6.   mean 13/3, var = (4 + 25 + 36)/3 − (13/3)² = 26/9
    assert float(normalizer.moments.var) == pytest.approx(26 / 9)
    assert normalizer.scale(np.array([1.0, -2.0])).tolist() == pytest.approx([3 / 26**0.5, -6 / 26**0.5])
    assert normalizer.running.tolist() == [6.0]


def test_the_return_goes_on_over_rollouts():
    normalizer = RewardNormalizer(1, gamma=0.5)
    for reward in (2.0, 4.0):
        normalizer.observe(column(reward), flags(False), flags(True))
    assert normalizer.running.tolist() == [5.0]


def test_an_end_on_the_last_step_of_a_rollout_starts_the_next_one_anew():
    normalizer = RewardNormalizer(1, gamma=0.5)
    normalizer.observe(column(2.0), flags(True), flags(True))
    normalizer.observe(column(4.0), flags(False), flags(True))
    assert normalizer.running.tolist() == [4.0]


def test_invalid_steps_do_not_count():
    rewards, dones = (2.0, 4.0, 6.0), (False, True, False)
    clean, with_fake = (RewardNormalizer(1, gamma=0.5) for _ in range(2))
    clean.observe(column(*rewards), flags(*dones), flags(True, True, True))
    # the reset after the end, and an idle step within an episode
    with_fake.observe(
        column(2.0, 99.0, 4.0, 0.0, 6.0),
        flags(False, False, True, False, False),
        flags(True, False, True, False, True),
    )
    assert with_fake.moments.count == clean.moments.count == 3
    assert float(with_fake.moments.var) == float(clean.moments.var)
    assert with_fake.running.tolist() == clean.running.tolist()


def test_one_set_of_statistics_serves_all_envs():
    rng = np.random.default_rng(0)
    reward, done = rng.normal(size=(40, 3)), rng.random((40, 3)) < 0.2
    together = RewardNormalizer(3, gamma=0.9)
    together.observe(reward, done, np.ones_like(done))
    returns = []
    for env in range(3):
        running = 0.0
        for t in range(40):
            running = 0.9 * running + reward[t, env]
            returns.append(running)
            running = 0.0 if done[t, env] else running
    assert together.moments.count == 120
    assert float(together.moments.mean) == pytest.approx(np.mean(returns))
    assert float(together.moments.var) == pytest.approx(np.var(returns))


def test_the_mean_is_not_subtracted():
    normalizer = RewardNormalizer(1, gamma=0.9)
    reward = 5.0 + np.random.default_rng(1).normal(size=(50, 1))
    normalizer.observe(reward, flags(*[False] * 50), flags(*[True] * 50))
    assert (normalizer.scale(np.array([0.1, 5.0])) > 0).all()
    assert normalizer.scale(np.array([0.0])).item() == 0.0


def test_before_any_reward_the_scale_is_one():
    assert RewardNormalizer(1, 0.9).scale(np.array([3.0])).item() == pytest.approx(3.0)


def test_scaled_rewards_are_clipped():
    normalizer = RewardNormalizer(1, gamma=0.9)
    normalizer.observe(column(1.0, 1.0), flags(True, True), flags(True, True))
    assert normalizer.scale(np.array([1.0, -1.0])).tolist() == [10.0, -10.0]


def test_scaling_alters_neither_the_reward_nor_the_statistics():
    normalizer, reward = RewardNormalizer(1, gamma=0.9), column(1.0, 3.0)
    normalizer.observe(reward, flags(False, False), flags(True, True))
    before = normalizer.state_dict()
    normalizer.scale(reward)
    assert reward.flatten().tolist() == [1.0, 3.0]
    assert normalizer.state_dict() == before


def test_restart_forgets_the_open_episodes_only():
    normalizer = RewardNormalizer(2, gamma=0.9)
    normalizer.observe(np.array([[1.0, 2.0]]), np.zeros((1, 2), bool), np.ones((1, 2), bool))
    normalizer.restart()
    assert normalizer.running.tolist() == [0.0, 0.0]
    assert normalizer.moments.count == 2


def test_state_round_trip_is_exact():
    rng = np.random.default_rng(2)
    first, second = RewardNormalizer(2, 0.97), RewardNormalizer(2, 0.97)
    rollouts = [(rng.normal(size=(9, 2)), rng.random((9, 2)) < 0.2, np.ones((9, 2), bool)) for _ in range(2)]
    first.observe(*rollouts[0])
    second.load_state_dict(first.state_dict())
    for each in (first, second):
        each.observe(*rollouts[1])
    np.testing.assert_array_equal(second.scale(rollouts[0][0]), first.scale(rollouts[0][0]))
    np.testing.assert_array_equal(second.running, first.running)


def test_a_saved_state_does_not_change_afterwards():
    normalizer = RewardNormalizer(1, gamma=0.9)
    normalizer.observe(column(3.0), flags(False), flags(True))
    state = normalizer.state_dict()
    normalizer.restart()
    assert state["running"].tolist() == [3.0]
