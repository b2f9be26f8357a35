"""Settings that change how an update is made, each against numbers worked out by hand, on both engines."""

import math

import pytest
import torch
from gymnasium import spaces

import surefoot
from surefoot.algorithms import npg, ppo_clip
from surefoot.engine.group import ALONE
from surefoot.engine.shares import Shares
from surefoot.engine.torch.mean_noise import gaussian_columns, with_mean_noise
from surefoot.engine.torch.optimizers import FlatOptimizer
from surefoot.errors import NonFiniteError, UsageError
from tests.building import CONTINUOUS, make_learner, make_policy, make_rollout

ENGINES = pytest.mark.parametrize("engine", ["torch", "native"])


def updated(engine, space=CONTINUOUS, *, rollout=None, policy=None, **config):
    """(the learner after an update by PPO, its metrics, the weights before)."""
    algorithm = ppo_clip.PPOClip(ppo_clip.Config(**{"num_envs": 4, "num_minibatches": 2, "num_epochs": 2, **config}))
    learner = make_learner(engine, policy or make_policy(space), algorithm, seed=1)
    before = learner.flat.vector.clone()
    learner.set_rates(1.0)
    metrics = algorithm.update(learner, rollout or make_rollout(learner.policy, steps=16, num_envs=4))
    assert learner.used == {engine}
    return learner, metrics, before


class TestAdamRel:
    @pytest.mark.parametrize(("kind", "step"), [("adam", 0.1), ("adam-rel", 0.1 * 10 / math.sqrt(1000))])
    def test_a_new_rollout_restarts_the_clock_but_not_the_moments(self, kind, step):
        """Both moments are 1 and stay so under a gradient of 1. At t = 1, they are divided by 0.1 and by 0.001."""
        vector, gradient = torch.zeros(1), torch.ones(1)
        optimizer = FlatOptimizer(kind, vector, gradient, [(0, 1, 0.1)])
        optimizer.first.fill_(1.0)
        optimizer.second.fill_(1.0)
        optimizer.steps = 10**6
        optimizer.begin_update()
        optimizer.step()
        assert vector.item() == pytest.approx(-step, rel=1e-4)
        assert (optimizer.first.item(), optimizer.second.item()) == (pytest.approx(1.0), pytest.approx(1.0))

    @ENGINES
    def test_every_update_counts_its_own_steps(self, engine):
        algorithm = ppo_clip.PPOClip(ppo_clip.Config(num_minibatches=2, num_epochs=2, optimizer="adam-rel"))
        learner = make_learner(engine, make_policy(), algorithm)
        for seed in range(2):
            learner.set_rates(1.0)
            algorithm.update(learner, make_rollout(learner.policy, steps=16, seed=seed))
            assert learner.optimizer.steps == 4


class TestMeanNoise:
    def test_shifted_actions_have_the_density_of_shifted_means(self):
        """log N(a; μ + z, σ) for known z, by the formula."""
        policy = make_policy(CONTINUOUS, log_std_init=-0.5)
        rollout = make_rollout(policy, steps=5, num_envs=3)
        batch = ppo_clip.PPOClip(ppo_clip.Config()).estimate(rollout)
        shifted = with_mean_noise(batch, 0.3, policy.actions, torch.Generator().manual_seed(7), Shares(ALONE))
        z = 0.3 * (2.0 * torch.rand(15, 2, generator=torch.Generator().manual_seed(7)) - 1.0)
        torch.testing.assert_close(batch.action - shifted.action, z)
        assert z.abs().max() <= 0.3
        mean, sigma = batch.dist_params[:, :2] + z, math.exp(-0.5)
        by_hand = (-0.5 * ((batch.action - mean) / sigma) ** 2 - math.log(sigma) - 0.5 * math.log(2 * math.pi)).sum(1)
        found = policy.evaluate(shifted.obs, shifted.action).log_prob
        torch.testing.assert_close(found, by_hand)
        assert torch.equal(shifted.log_prob, batch.log_prob)  # π_old as it was collected

    def test_only_gaussian_parts_are_shifted(self):
        space = spaces.Dict({"a": spaces.Discrete(3), "b": CONTINUOUS, "c": spaces.MultiBinary(2), "d": CONTINUOUS})
        assert gaussian_columns(make_policy(space).actions) == [1, 2, 5, 6]
        for wrong in ({"action_space": spaces.Discrete(2)}, {"action_space": CONTINUOUS, "action_bounds": "tanh"}):
            with pytest.raises(UsageError, match="mean_noise shifts the mean of a Gaussian"):
                gaussian_columns(make_policy(**wrong).actions)

    @ENGINES
    def test_the_first_ratio_is_checked_without_noise(self, engine):
        """And the noise reaches the loss: approx_kl of the first epoch is that of the noise, about E[z²/2σ²]·2."""
        quiet = {"num_epochs": 1, "num_minibatches": 1, "learning_rate": 1e-12, "normalize_advantage": "none"}
        _, metrics, _ = updated(engine, mean_noise=0.5, **quiet)
        assert metrics["ratio_error"] < 1e-5
        assert metrics["kl"] < 1e-5
        # E over a and z of KL(N(μ, 1) ‖ N(μ + z, 1)) = z²/2 per dimension; E[z²] = α²/3; two dimensions
        assert metrics["approx_kl"] == pytest.approx(0.5**2 / 3, rel=0.5)


class TestOuterStep:
    @ENGINES
    @pytest.mark.parametrize("sigma", [0.5, 2.0])
    def test_the_whole_step_is_scaled(self, engine, sigma):
        plain, _, start = updated(engine)
        scaled, _, before = updated(engine, outer_learning_rate=sigma)
        assert torch.equal(start, before)
        expected = start + sigma * (plain.flat.vector - start)
        torch.testing.assert_close(scaled.flat.vector, expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(scaled.optimizer.first, plain.optimizer.first)

    def test_the_kl_is_that_of_the_weights_that_stay(self):
        kl = [updated("native", outer_learning_rate=sigma)[1]["kl"] for sigma in (0.5, 1.0, 2.0)]
        assert kl[0] < 0.5 * kl[1] < 0.25 * kl[2]  # roughly quadratic in the step


class TestCriticApart:
    @ENGINES
    def test_actor_and_critic_take_their_own_numbers_of_steps(self, engine):
        learner, metrics, before = updated(engine, value_epochs=3)
        assert (learner.optimizer.steps, learner.optimizer.of_critic.steps) == (2 * 2, 3 * 2)
        assert metrics["value_loss"] > 0.0
        size = learner.flat.actor_size
        assert not torch.equal(learner.flat.vector[size:], before[size:])

    @ENGINES
    def test_the_actor_learns_as_if_there_were_no_critic_to_train(self, engine):
        """Its gradient norm, and so its clipped steps, are those with c_v = 0, however long the critic is trained."""
        steep = {"max_grad_norm": 0.01, "optimizer": "rmsprop"}
        found = [updated(engine, value_epochs=n, **steep) for n in (1, 4)]
        alone, metrics, _ = updated(engine, value_coef=0.0, **steep)
        assert torch.equal(found[0][0].flat.actor, found[1][0].flat.actor)
        torch.testing.assert_close(found[0][0].flat.actor, alone.flat.actor, rtol=1e-5, atol=1e-6)
        assert found[0][1]["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=1e-4)

    def test_the_critic_learns_as_that_of_npg_does(self):
        """Which is fitted by the same passes: the same weights, since shuffling begins after two epochs of PPO's."""
        policy, rollout = make_policy(), make_rollout(make_policy(), steps=16, num_envs=4)
        settings = {"num_minibatches": 1, "gae_lambda": 0.9, "learning_rate": 1e-3}
        learner, *_ = updated("torch", rollout=rollout, policy=policy, value_epochs=3, **settings)
        other = npg.NPG(npg.Config(value_epochs=3, value_minibatches=1, gae_lambda=0.9, learning_rate=1e-3))
        theirs = make_learner("torch", make_policy(), other)
        other.update(theirs, rollout)
        size = learner.flat.actor_size
        torch.testing.assert_close(learner.flat.vector[size:], theirs.flat.vector[size:], rtol=1e-5, atol=1e-6)

    @ENGINES
    def test_a_rejected_update_restores_both_clocks(self, engine):
        algorithm = ppo_clip.PPOClip(ppo_clip.Config(num_minibatches=2, num_epochs=2, value_epochs=2))
        learner = make_learner(engine, make_policy(), algorithm)
        rollout = make_rollout(learner.policy, steps=16)
        rollout.reward[0, 0] = float("inf")
        before = learner.flat.vector.clone()
        with pytest.raises(NonFiniteError):
            algorithm.update(learner, rollout)
        assert (learner.optimizer.steps, learner.optimizer.of_critic.steps) == (0, 0)
        assert torch.equal(learner.flat.vector, before)

    @pytest.mark.parametrize(
        ("config", "why"),
        [({"shared_trunk": True}, "share a trunk; set --no-shared-trunk"), ({"memory": "gru"}, "use memory=none")],
    )
    def test_it_needs_a_critic_of_its_own(self, config, why):
        algorithm = ppo_clip.PPOClip(ppo_clip.Config(value_epochs=2))
        with pytest.raises(UsageError, match=why):
            make_learner("torch", make_policy(**config), algorithm)


WRONG = {
    "discrete": ({"mean_noise": 0.5}, r"mean_noise is for continuous actions, but CartPole-v1 has Discrete\(2\)"),
    "coef": ({"value_epochs": 2, "value_coef": 0.7}, "value_coef has no effect with value_epochs"),
    "surrogate": ({"surrogate": "sop"}, "surrogate='sop' is not one of: clip, spo; did you mean 'spo'"),
    "optimizer": ({"optimizer": "adamrel"}, "did you mean 'adam-rel'"),
    "outer": ({"outer_learning_rate": 0}, "outer_learning_rate=0.* is too small"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_explained(case, tmp_path):
    settings, message = WRONG[case]
    with pytest.raises(UsageError, match=message):
        surefoot.train(
            "CartPole-v1", preset="none", total_steps=1024, progress=False, run_dir=tmp_path / "r", **settings
        )


def test_a_squashed_gaussian_is_explained(tmp_path):
    settings = {"mean_noise": 0.5, "action_bounds": "tanh", "preset": "none", "progress": False}
    with pytest.raises(UsageError, match="action_bounds=tanh; use action_bounds=clip"):
        surefoot.train("Pendulum-v1", total_steps=1024, run_dir=tmp_path / "r", **settings)
