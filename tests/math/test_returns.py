import pytest
import torch

from surefoot.math.returns import gae, reverse_scan, reward_to_go, td_error


def column(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype).unsqueeze(1)


def flags(*values):
    return column(*values, dtype=torch.bool)


def random_rollout(seed, steps=9, envs=4):
    g = torch.Generator().manual_seed(seed)
    reward, value, next_value = (torch.randn(steps, envs, generator=g, dtype=torch.float64) for _ in range(3))
    terminated, truncated = (torch.rand(steps, envs, generator=g) < 0.2 for _ in range(2))
    return reward, value, next_value, terminated, truncated


def test_reverse_scan_by_hand():
    # y3 = 4;  y2 = 3 + 0·4 = 3;  y1 = 2 + 0.5·3 = 3.5;  y0 = 1 + 0.5·3.5 = 2.75
    y = reverse_scan(column(1.0, 2.0, 3.0, 4.0), column(0.5, 0.5, 0.0, 0.5))
    assert y.flatten().tolist() == [2.75, 3.5, 3.0, 4.0]


def test_reverse_scan_runs_over_time_and_never_over_envs():
    x = torch.tensor([[1.0, 10.0, 100.0], [2.0, 20.0, 200.0]])
    y = reverse_scan(x, torch.full((2, 3), 0.5))
    # y0 = x0 + 0.5·x1 in each column
    assert y.tolist() == [[2.0, 20.0, 200.0], [2.0, 20.0, 200.0]]


def test_reverse_scan_leaves_its_arguments_alone():
    x, decay = torch.ones(3, 2), torch.ones(3, 2)
    reverse_scan(x, decay)
    assert torch.equal(x, torch.ones(3, 2))
    assert torch.equal(decay, torch.ones(3, 2))


def test_reverse_scan_takes_a_transposed_view():
    x = torch.tensor([[1.0, 2.0, 3.0]]).T
    assert reverse_scan(x, torch.ones(3, 1)).flatten().tolist() == [6.0, 5.0, 3.0]


def test_one_step_comes_back_as_it_is():
    assert reverse_scan(column(5.0), column(0.9)).item() == 5.0


@pytest.mark.parametrize(("x", "decay"), [((3,), (3,)), ((3, 2), (2, 3)), ((3, 2), (3, 1)), ((3, 2, 1), (3, 2, 1))])
def test_reverse_scan_refuses_other_shapes(x, decay):
    with pytest.raises(AssertionError):
        reverse_scan(torch.zeros(x), torch.zeros(decay))


def test_reward_to_go_by_hand():
    # episode 1: R1 = 2, R0 = 1 + 0.5·2 = 2;  episode 2: R3 = 8, R2 = 4 + 0.5·8 = 8
    returns = reward_to_go(column(1.0, 2.0, 4.0, 8.0), flags(False, True, False, True), gamma=0.5)
    assert returns.flatten().tolist() == [2.0, 2.0, 8.0, 8.0]


@pytest.mark.parametrize("seed", range(3))
def test_reward_to_go_is_the_discounted_sum_to_the_end_of_the_episode(seed):
    reward, _, _, terminated, truncated = random_rollout(seed)
    done, gamma = terminated | truncated, 0.93
    expected = torch.zeros_like(reward)
    for n in range(reward.shape[1]):
        for t in range(len(reward)):
            for later in range(t, len(reward)):
                expected[t, n] += gamma ** (later - t) * reward[later, n]
                if done[later, n]:
                    break
    torch.testing.assert_close(reward_to_go(reward, done, gamma), expected)


def test_td_error_by_hand():
    # 1 + 0.9·20 − 10 = 9
    delta = td_error(column(1.0), column(10.0), column(20.0), flags(False), gamma=0.9)
    assert delta.item() == pytest.approx(9.0)


def test_terminated_step_has_no_future():
    # 1 + 0 − 10 = −9
    assert td_error(column(1.0), column(10.0), column(20.0), flags(True), gamma=0.9).item() == pytest.approx(-9.0)


def test_a_nan_after_the_end_does_not_leak():
    delta = td_error(column(1.0, 1.0), column(2.0, 2.0), column(float("nan"), 4.0), flags(True, False), gamma=0.5)
    # 1 − 2 = −1;  1 + 0.5·4 − 2 = 1
    assert delta.flatten().tolist() == [-1.0, 1.0]
    assert gae(delta, flags(True, False), 0.5, 0.9).isfinite().all()


def test_td_error_refuses_to_broadcast():
    with pytest.raises(AssertionError):
        td_error(torch.zeros(3, 2), torch.zeros(3, 1), torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.bool), 0.9)


# Three steps with γ = λ = 0.5, r = 1, V = 2, 4, 6 and V = 12 after the last: δ0 = 1 + 2 − 2 = 1, δ2 = 1 + 6 − 6 = 1.
# The middle step ends in each of the ways. Its final observation has V = 8, the state after the reset has V = 6.
ENDS = {
    # δ1 = 1 + 3 − 4 = 0:  Â1 = 0 + ¼·1 = 0.25;  Â0 = 1 + ¼·0.25 = 1.0625
    "goes on": (False, False, 6.0, [1.0625, 0.25, 1.0]),
    # δ1 = 1 − 4 = −3, no recursion beyond it:  Â0 = 1 − ¾ = 0.25
    "terminated": (True, False, 8.0, [0.25, -3.0, 1.0]),
    # δ1 = 1 + 4 − 4 = 1, no recursion beyond it:  Â0 = 1 + ¼·1 = 1.25
    "truncated": (False, True, 8.0, [1.25, 1.0, 1.0]),
    "both: terminated wins": (True, True, 8.0, [0.25, -3.0, 1.0]),
}


@pytest.mark.parametrize("end", ENDS)
def test_gae_at_the_ways_an_episode_ends(end):
    terminated, truncated, following, expected = ENDS[end]
    terminated, truncated = flags(False, terminated, False), flags(False, truncated, False)
    delta = td_error(column(1.0, 1.0, 1.0), column(2.0, 4.0, 6.0), column(4.0, following, 12.0), terminated, 0.5)
    assert gae(delta, terminated | truncated, 0.5, 0.5).flatten().tolist() == expected


def test_advantages_do_not_cross_a_truncation():
    delta = column(1.0, 1.0, 100.0)
    # Â1 = 1 (cut), Â0 = 1 + 0.81·1 = 1.81
    assert gae(delta, flags(False, True, False), 0.9, 0.9).flatten().tolist() == pytest.approx([1.81, 1.0, 100.0])


def test_truncation_on_the_last_step_counts_once():
    reward, value, next_value = column(1.0, 1.0), column(2.0, 4.0), column(4.0, 8.0)
    never = flags(False, False)
    delta = td_error(reward, value, next_value, never, 0.5)
    # V of the final observation enters δ_{T−1} = 1 + 0.5·8 − 4 = 1 and nowhere else:  Â0 = 1 + 0.25·1
    open_ = gae(delta, never, 0.5, 0.5)
    cut = gae(delta, flags(False, True), 0.5, 0.5)
    assert open_.flatten().tolist() == cut.flatten().tolist() == [1.25, 1.0]


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("segment_length", [None, 1, 3, 4, 100])
def test_gae_is_its_sum(lambda_, segment_length):
    reward, value, next_value, terminated, truncated = random_rollout(seed=7)
    done, gamma = terminated | truncated, 0.97
    delta = torch.zeros_like(reward)
    expected = torch.zeros_like(reward)
    for n in range(reward.shape[1]):
        for t in range(len(reward)):
            future = 0.0 if terminated[t, n] else next_value[t, n]
            delta[t, n] = reward[t, n] + gamma * future - value[t, n]
    for n in range(reward.shape[1]):
        for t in range(len(reward)):
            for later in range(t, len(reward)):
                expected[t, n] += (gamma * lambda_) ** (later - t) * delta[later, n]
                if done[later, n] or (segment_length and (later + 1) % segment_length == 0):
                    break
    torch.testing.assert_close(td_error(reward, value, next_value, terminated, gamma), delta)
    torch.testing.assert_close(gae(delta, done, gamma, lambda_, segment_length), expected)


def test_lambda_zero_is_the_td_error():
    reward, value, next_value, terminated, truncated = random_rollout(seed=1)
    delta = td_error(reward, value, next_value, terminated, 0.9)
    assert torch.equal(gae(delta, terminated | truncated, 0.9, 0.0), delta)


def test_lambda_one_plus_value_is_the_bootstrapped_return():
    reward, value, _, terminated, truncated = random_rollout(seed=2)
    done, gamma = terminated | truncated, 0.9
    # Where the episode goes on, the state that followed is the one whose value comes next.
    final = torch.randn(reward.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    next_value = torch.cat([value[1:], final[-1:]]).where(~done, final)
    expected = torch.zeros_like(reward)
    for n in range(reward.shape[1]):
        for t in range(len(reward)):
            for later in range(t, len(reward)):
                expected[t, n] += gamma ** (later - t) * reward[later, n]
                if done[later, n] or later == len(reward) - 1:
                    if not terminated[later, n]:
                        expected[t, n] += gamma ** (later - t + 1) * final[later, n]
                    break
    advantage = gae(td_error(reward, value, next_value, terminated, gamma), done, gamma, 1.0)
    torch.testing.assert_close(advantage + value, expected)


def test_segments_of_two_by_hand():
    # γλ = 0.5:  Â3 = 4 (end);  Â2 = 3 + 0.5·4 = 5;  Â1 = 2 (cut);  Â0 = 1 + 0.5·2 = 2
    advantage = gae(column(1.0, 2.0, 3.0, 4.0), flags(False, False, False, False), 0.5, 1.0, segment_length=2)
    assert advantage.flatten().tolist() == [2.0, 2.0, 5.0, 4.0]


def test_constant_reward_with_truncations_has_the_value_of_the_endless_episode():
    gamma, steps = 0.9, 30
    truncated = torch.zeros(steps, 1, dtype=torch.bool)
    truncated[4::5] = True
    never, reward = torch.zeros_like(truncated), torch.ones(steps, 1, dtype=torch.float64)

    def fixed_point(terminated):
        value = torch.zeros_like(reward)
        for _ in range(400):
            same_state = value.mean().expand_as(value)
            delta = td_error(reward, same_state, same_state, terminated, gamma)
            value = same_state + gae(delta, truncated, gamma, 0.95)
        return value.mean().item()

    assert fixed_point(never) == pytest.approx(1 / (1 - gamma))
    # Taking those ends for terminations teaches another number: the wrong one.
    assert fixed_point(truncated) < 0.6 / (1 - gamma)
