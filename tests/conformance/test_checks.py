"""The checks themselves: numbers worked out by hand, and each mistake caught with its own message."""

import numpy as np
import pytest

from surefoot.conformance import estimates, tasks, values
from surefoot.conformance.adapter import AdapterError
from surefoot.conformance.finding import as_array
from surefoot.conformance.suite import CHECKS
from tests.conformance.learners import InProcess, with_mistake


def check(name, **functions):
    return CHECKS[name].carry_out(InProcess(**functions))


def test_the_chain_stops_at_a_state_that_is_neither_the_one_before_nor_the_first():
    env = tasks.Cut()
    seen = [int(env.reset(seed=0)[0].argmax())]
    rewards, ends = [], []
    for _ in range(tasks.LENGTH):
        obs, reward, *end, _ = env.step(0)
        seen.append(int(obs.argmax()))
        rewards.append(reward)
        ends.append(tuple(end))
    assert seen == [0, 1, 2, 3, 1]
    assert tuple(rewards) == values.REWARDS == tasks.Chain.rewards
    assert tasks.Steady.rewards == values.ONES
    assert ends == [(False, False)] * 3 + [(False, True)]


def test_fixed_points_by_hand():
    """γ = 0.8. Truncation: V(1) = (1.5 + 0.64·0.5) / (1 − 0.512), V(3) = 0.5 + 0.8·V(1)."""
    assert values.fixed_point(values.ONES, "final") == pytest.approx([5.0] * 4)
    one = 1.82 / 0.488
    assert values.fixed_point(values.REWARDS, "final") == pytest.approx(
        [-1 + 0.8 * one, one, 0.8 * (0.5 + 0.8 * one), 0.5 + 0.8 * one]
    )
    assert values.fixed_point(values.REWARDS, "none") == pytest.approx([-1 + 0.8 * 1.82, 1.82, 0.4, 0.5])
    assert values.fixed_point(values.REWARDS, "last")[3] == pytest.approx(0.5 / 0.2)
    assert values.fixed_point(values.REWARDS, "reset")[3] == pytest.approx(0.66 / 0.5904)  # V = 0.5 + 0.8·V(0)
    one, two, three, _ = values.fixed_point(values.REWARDS, "final", fake=True)
    assert two == pytest.approx((1.5 + 0.8 * three) / 2 + 0.8 * one / 2)


def test_advantages_by_hand():
    """Env 0, γ = 0.9: δ = −0.1, 2.6 and, at the end, 3 + 0.9·7 − 4 = 5.3 if truncated or 3 − 4 = −1 if terminated."""
    cut, ended = estimates.example(False, True), estimates.example(True, False)
    assert estimates.gae(cut, 0.0)[:3, 0] == pytest.approx([-0.1, 2.6, 5.3])
    assert estimates.gae(cut, 1.0)[:3, 0] == pytest.approx([6.533, 7.37, 5.3])
    assert estimates.gae(ended, 1.0)[:3, 0] == pytest.approx([1.43, 1.7, -1.0])
    assert estimates.gae(ended, 0.95)[0, 0] == pytest.approx(-0.1 + 0.855 * (2.6 - 0.855))
    assert np.array_equal(estimates.gae(estimates.example(True, True), 0.95), estimates.gae(ended, 0.95))


def test_inside_an_episode_the_next_value_is_the_next_rows():
    for flags in ((False, False), (True, False), (False, True), (True, True)):
        steps = estimates.example(*flags)
        inside = ~steps.done[:-1]
        assert np.array_equal(steps.next_value[:-1][inside], steps.value[1:][inside])


@pytest.mark.parametrize("name", [own.name for own in values.CHECKS])
def test_a_right_learner_passes(name):
    found = check(name, **with_mistake())
    assert (found.result, found.means) == ("passed", "")


@pytest.mark.parametrize(
    ("name", "mistake", "means"),
    [
        ("truncation", {"future": "none"}, "Truncation is treated as termination"),
        ("final-observation", {"future": "none"}, "Truncation is treated as termination"),
        ("final-observation", {"future": "last"}, "bootstraps from V(s_t)"),
        ("final-observation", {"future": "reset"}, "from the first observation of the next episode"),
        ("termination", {"future": "past"}, "bootstraps past terminal states"),
        ("both-ends", {"future": "past"}, "bootstraps past terminal states"),
        ("autoreset", {"fake": True}, "The fake step"),
        ("autoreset", {"fake": True, "future": "none"}, "Truncation is treated as termination"),
    ],
)
def test_a_mistake_of_a_learner_is_named(name, mistake, means):
    found = check(name, **with_mistake(**mistake))
    assert found.result == "failed"
    assert means in found.means


KINDS = {
    "gae": (False, False),
    "gae-terminated": (True, False),
    "gae-truncated": (False, True),
    "gae-both": (True, True),
}


@pytest.mark.parametrize("name", KINDS)
def test_each_mistake_in_gae_is_told_from_all_others(name):
    """Every mistake that changes these numbers is recognised, by its own message or that of an equal one."""
    steps = estimates.example(*KINDS[name])
    right = [estimates.gae(steps, own) for own in estimates.LAMBDAS]
    known = [(means, [wrong(own) for own in estimates.LAMBDAS]) for means, wrong in estimates.mistakes(steps)]
    caught = 0
    for means, numbers in known:
        if np.allclose(numbers, right):
            continue
        answers = dict(zip(estimates.LAMBDAS, numbers, strict=True))
        found = check(name, advantages=lambda *_, gae_lambda, own=answers, **__: own[gae_lambda])
        assert found.result == "failed"
        same = [other for other, theirs in known if np.allclose(theirs, numbers)]
        assert found.means in same, means
        caught += 1
    assert caught >= 5


def test_at_a_truncation_no_two_mistakes_give_the_same_numbers():
    steps = estimates.example(False, True)
    known = [np.stack([wrong(own) for own in estimates.LAMBDAS]) for _, wrong in estimates.mistakes(steps)]
    right = np.stack([estimates.gae(steps, own) for own in estimates.LAMBDAS])
    changed = [numbers for numbers in known if not np.allclose(numbers, right)]
    equal = sum(np.allclose(a, b) for i, a in enumerate(changed) for b in changed[:i])
    assert len(changed) >= 10
    assert equal <= 1  # without terminations, a leak across truncation is a leak across every end


def probabilities(logits):
    weights = np.exp(logits)
    return weights / weights.sum(-1, keepdims=True)


def kl(old, new):
    p, q = probabilities(old), probabilities(new)
    return (p * np.log(p / q)).sum(-1)


@pytest.mark.parametrize(
    ("function", "means"),
    [
        (lambda old, new: kl(old, new).mean(), None),
        (lambda old, new: kl(new, old).mean(), "KL(new‖old)"),
        (lambda old, new: kl(old, new).sum(), "sum over states"),
        (lambda old, new: -kl(old, new).mean(), "wrong sign"),
        (lambda old, new: 17.0, "No known mistake"),
        (lambda old, new: float("nan"), "not finite"),
    ],
)
def test_the_direction_of_the_kl(function, means):
    found = check("kl", kl=function)
    assert found.result == ("failed" if means else "passed")
    assert (means or "") in found.means


def test_the_first_ratio():
    assert check("first-ratio", first_ratio=lambda make, seed: 1e-7).result == "passed"
    for wrong in (0.1, float("nan"), -1.0):
        found = check("first-ratio", first_ratio=lambda make, seed, own=wrong: own)
        assert found.result == "failed"
        assert "every ratio is 1" in found.means


def test_resume_tells_what_is_not_saved_from_what_is_not_reproducible():
    assert check("resume", resume=lambda *_, **__: ("a", "a")).result == "passed"
    assert "Something is not saved" in check("resume", resume=lambda *_, **__: ("a", "b")).means
    drawn = iter("abcdef")
    assert "not reproducible" in check("resume", resume=lambda *_, **__: (next(drawn), next(drawn))).means


def test_what_an_adapter_lacks_is_not_checked_and_its_note_says_why():
    adapter = InProcess(kl=lambda old, new: 0.0, NOTES={"resume": "it cannot save"})
    assert CHECKS["resume"].carry_out(adapter).means == "it cannot save"
    assert CHECKS["gae"].carry_out(adapter).means == "the adapter has no function advantages"
    assert CHECKS["gae"].carry_out(adapter).result == "not checked"


@pytest.mark.parametrize("answer", [None, "text", [1.0, 2.0], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]])
def test_answers_of_another_shape(answer):
    with pytest.raises(AdapterError, match=r"answered"):
        as_array(answer, (3, 2))
    assert as_array([[1.0], [2.0]], (2,)).tolist() == [1.0, 2.0]  # a column for a row is harmless
