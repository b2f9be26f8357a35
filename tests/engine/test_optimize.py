"""Gradient steps, epochs, schedules, early stops."""

import pytest
import torch

from surefoot.algorithms import npg, ppo_clip, ppo_penalty, trpo
from surefoot.engine.config import GradientConfig, check_minibatches, count_minibatches
from surefoot.engine.torch.learner import Learner
from surefoot.errors import SurefootError, UsageError
from tests.building import CONTINUOUS, DISCRETE, make_policy, make_rollout


def make_learner(policy=None, seed=0, train_actor=True, **config):
    critic_rate, adaptive = config.pop("critic_learning_rate", None), config.pop("adaptive_kl", None)
    return Learner(
        policy or make_policy(),
        GradientConfig(**config),
        torch.Generator().manual_seed(seed),
        train_actor=train_actor,
        critic_learning_rate=critic_rate,
        adaptive_kl=adaptive,
    )


def ppo(**config):
    return ppo_clip.PPOClip(ppo_clip.Config(**config))


def test_parameters_are_views_of_one_vector_the_actor_first():
    policy = make_policy(CONTINUOUS)
    learner = make_learner(policy)
    learner.flat.vector.zero_()
    assert all((p == 0).all() for p in policy.parameters())
    learner.flat.actor.fill_(1.0)
    assert all((p == 1).all() for p in policy.actor_parameters())
    assert all((p == 0).all() for p in policy.critic_parameters())


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("most", [0.5, 1e6], ids=["clipped", "within"])
def test_a_step_equals_torchs_own_optimizer(optimizer, most):
    ours, theirs = make_policy(), make_policy()
    learner = make_learner(ours, learning_rate=0.01, optimizer=optimizer, max_grad_norm=most)
    kind = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}[optimizer]
    reference = kind(theirs.parameters(), lr=0.01, eps=1e-5)
    x = torch.randn(32, 4)
    for _ in range(5):
        norm = learner.descend(100 * ours.value(x).square().mean() + ours.action_params(x).square().mean())
        reference.zero_grad()
        (100 * theirs.value(x).square().mean() + theirs.action_params(x).square().mean()).backward()
        expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), most)
        reference.step()
        torch.testing.assert_close(norm, expected)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_gradient_within_the_limit_is_left_alone():
    """Adam hides a gradient's scale, so look at the gradient itself."""
    found = []
    for most in (1e6, None):
        learner = make_learner(max_grad_norm=most)
        learner.descend(learner.policy.value(torch.ones(8, 4)).square().mean())
        found.append(learner.flat.gradient.clone())
    assert torch.equal(*found)


def test_a_critics_fit_is_clipped_by_the_critics_own_gradient():
    policy = make_policy(shared_trunk=True)
    learner = make_learner(policy, train_actor=False, max_grad_norm=None)
    norm = learner.descend(policy.value(torch.ones(8, 4)).square().mean())
    own = torch.cat([p.grad.flatten() for p in policy.critic_parameters()])
    assert norm.item() == pytest.approx(own.norm().item(), rel=1e-6)
    assert learner.flat.gradient.norm().item() > 1.01 * norm.item()  # the trunk's gradient exists and does not count


def test_the_logged_norm_is_that_before_clipping():
    learner = make_learner(max_grad_norm=0.001)
    norm = learner.descend(1000 * learner.policy.value(torch.randn(8, 4)).square().mean())
    assert norm.item() > 1.0


def test_actor_and_critic_may_learn_at_different_rates():
    learner = make_learner(learning_rate=1e-3, critic_learning_rate=1e-1)
    before = learner.flat.vector.clone()
    x = torch.randn(8, 4)
    learner.descend(learner.policy.value(x).square().mean() + learner.policy.action_params(x).square().mean())
    moved = (learner.flat.vector - before).abs()
    split = learner.flat.actor_size
    assert moved[:split].max().item() == pytest.approx(1e-3, rel=0.05)
    assert moved[split:].max().item() == pytest.approx(1e-1, rel=0.05)


def test_linear_schedule_falls_with_what_remains():
    learner = make_learner(learning_rate=1e-3, learning_rate_schedule="linear")
    learner.set_rates(0.25)
    assert learner.learning_rate == pytest.approx(2.5e-4)


@pytest.mark.parametrize(("kl", "factor"), [(0.021, 1 / 1.5), (0.02, 1.0), (0.01, 1.0), (0.005, 1.0), (0.004, 1.5)])
def test_adaptive_rate_follows_the_kl(kl, factor):
    learner = make_learner(learning_rate=1e-3, adaptive_kl=0.01)
    learner.adapt_rate(kl)
    learner.set_rates(1.0)
    assert learner.learning_rate == pytest.approx(1e-3 * factor)


def test_adaptive_rate_stays_within_its_range():
    learner = make_learner(learning_rate=1e-3, adaptive_kl=0.01)
    for _ in range(50):
        learner.adapt_rate(1.0)
    learner.set_rates(1.0)
    assert learner.learning_rate == pytest.approx(1e-5)
    for _ in range(50):
        learner.adapt_rate(0.0)
    learner.set_rates(1.0)
    assert learner.learning_rate == pytest.approx(1e-2)


def test_a_rate_that_is_set_stays_and_ends_the_schedule():
    learner = make_learner(learning_rate=1e-3, critic_learning_rate=1e-2, learning_rate_schedule="linear")
    learner.set_rates(0.5)
    learner.learning_rate = 2e-3
    assert learner.learning_rate == pytest.approx(2e-3)
    learner.set_rates(0.25)
    assert learner.learning_rate == pytest.approx(2e-3)
    before = learner.flat.vector.clone()
    x = torch.randn(8, 4)
    learner.descend(learner.policy.value(x).square().mean() + learner.policy.action_params(x).square().mean())
    moved, split = (learner.flat.vector - before).abs(), learner.flat.actor_size
    assert moved[:split].max().item() == pytest.approx(2e-3, rel=0.05)
    assert moved[split:].max().item() == pytest.approx(2e-2, rel=0.05)


def test_a_rate_that_is_set_is_saved_and_adapted():
    learner, other = (make_learner(learning_rate=1e-3, adaptive_kl=0.01) for _ in range(2))
    learner.learning_rate = 3e-3
    learner.adapt_rate(0.03)
    other.load_state_dict(learner.state_dict())
    other.set_rates(0.1)
    assert other.learning_rate == pytest.approx(2e-3)


@pytest.mark.parametrize("rate", [-1e-3, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(rate):
    learner = make_learner(learning_rate=1e-3)
    with pytest.raises(UsageError, match="learning_rate="):
        learner.learning_rate = rate
    assert learner.learning_rate == 1e-3


def test_each_epoch_uses_every_sample_once_in_a_new_order():
    learner = make_learner()
    rollout = make_rollout(learner.policy, steps=8, num_envs=4)
    batch = ppo().estimate(rollout)
    batch.advantage = torch.arange(32.0)
    epochs = [torch.cat([part.advantage for part in learner.minibatches(batch, 4)]) for _ in range(2)]
    for order in epochs:
        assert order.sort().values.tolist() == list(range(32))
    assert not torch.equal(*epochs)


def test_minibatch_normalisation_is_per_minibatch():
    seen = []

    class Spy(ppo_clip.PPOClip):
        def loss(self, outputs, batch):
            seen.append(batch.advantage)
            return super().loss(outputs, batch)

    learner = make_learner()
    algorithm = Spy(ppo_clip.Config(num_minibatches=4, num_epochs=2, normalize_advantage="minibatch"))
    algorithm.update(learner, make_rollout(learner.policy, steps=8, num_envs=4))
    assert len(seen) == 8
    for advantage in seen:
        assert advantage.mean().item() == pytest.approx(0.0, abs=1e-6)
        assert advantage.std(unbiased=False).item() == pytest.approx(1.0, abs=1e-5)


def test_metrics_are_means_over_the_whole_update():
    entropies = []

    class Spy(ppo_clip.PPOClip):
        def loss(self, outputs, batch):
            total, metrics = super().loss(outputs, batch)
            entropies.append(metrics["entropy"].item())
            return total, metrics

    learner = make_learner(learning_rate=1e-2)
    algorithm = Spy(ppo_clip.Config(num_minibatches=2, num_epochs=3))
    metrics = algorithm.update(learner, make_rollout(learner.policy, steps=8))
    assert len(set(entropies)) > 1
    assert metrics["entropy"] == pytest.approx(sum(entropies) / 6, rel=1e-6)


def test_kl_is_exact_over_the_rollout_after_the_last_step():
    learner = make_learner(make_policy(CONTINUOUS), learning_rate=1e-2)
    rollout = make_rollout(learner.policy, steps=8)
    metrics = ppo().update(learner, rollout)
    params = learner.policy.action_params(rollout.inputs[:-1].flatten(0, 1)).detach()
    old, new = (
        torch.distributions.Normal(p[:, :2], p[:, 2:].exp()) for p in (rollout.dist_params.flatten(0, 1), params)
    )
    kl = torch.distributions.kl_divergence(old, new).sum(-1)
    assert metrics["kl"] == pytest.approx(kl.mean().item(), rel=1e-4)
    assert metrics["kl_max"] == pytest.approx(kl.max().item(), rel=1e-4)
    assert metrics["kl_p95"] == pytest.approx(kl.quantile(0.95).item(), rel=1e-4)


def test_stop_kl_ends_the_epochs():
    learner = make_learner(learning_rate=1e-2)
    metrics = ppo(num_epochs=10, stop_kl=1e-9).update(learner, make_rollout(learner.policy, steps=8))
    assert metrics["epochs"] == 1.0
    assert ppo(num_epochs=10).update(learner, make_rollout(learner.policy, steps=8, seed=1))["epochs"] == 10.0


def test_recompute_advantage_uses_the_new_critic_in_every_epoch():
    targets = []

    class Spy(ppo_clip.PPOClip):
        def estimate(self, rollout, operations):
            batch = super().estimate(rollout, operations)
            targets.append(batch.value_target.clone())
            return batch

    learner = make_learner(learning_rate=1e-2)
    config = ppo_clip.Config(num_epochs=3, num_minibatches=1, recompute_advantage=True, gae_lambda=0.5)
    Spy(config).update(learner, make_rollout(learner.policy, steps=8))
    assert len(targets) == 3
    assert not torch.equal(targets[0], targets[1])


def test_a_policy_that_changes_between_rollout_and_update_is_caught():
    learner = make_learner()
    rollout = make_rollout(learner.policy, steps=8)
    rollout.log_prob += 0.1
    with pytest.raises(SurefootError, match="disagrees with itself"):
        ppo().update(learner, rollout)


def test_minibatches_must_divide_and_the_message_names_a_number_that_does():
    with pytest.raises(UsageError, match="num_minibatches=3 does not divide 512 samples; try 2"):
        check_minibatches(512, 3, False)
    with pytest.raises(UsageError, match="one sample"):
        check_minibatches(8, 8, True)
    check_minibatches(8, 8, False)


@pytest.mark.parametrize(
    ("envs", "length", "memory", "parts"),
    [
        (8, 128, False, 16),  # of 64
        (1, 128, False, 2),
        (8, 5, False, 1),  # fewer than 64 in all
        (10, 100, False, 10),  # 15 would be of 66, but does not divide
        (1, 127, False, 1),
        (64, 128, False, 32),  # never more: of 256
        (8, 128, True, 4),  # of two whole envs
        (6, 128, True, 3),
        (7, 128, True, 1),
        (1, 128, True, 1),
    ],
)
def test_automatic_minibatches(envs, length, memory, parts):
    samples = envs * length
    assert count_minibatches("auto", samples, envs if memory else samples) == parts
    assert count_minibatches(5, samples, envs if memory else samples) == 5  # as wanted


@pytest.mark.parametrize("kind", [ppo_clip.PPOClip, trpo.TRPO])
def test_automatic_minibatches_are_those_that_they_stand_for(kind):
    name = "num_minibatches" if kind is ppo_clip.PPOClip else "value_minibatches"

    def learned(parts):
        learner = make_learner()
        rollout = make_rollout(learner.policy, steps=128)
        kind(kind.config_type(**{name: parts})).update(learner, rollout)
        return learner.flat.vector.clone(), rollout.reward.numel()

    automatic, samples = learned("auto")
    assert samples >= 128
    assert torch.equal(automatic, learned(samples // 64)[0])
    assert not torch.equal(automatic, learned(1)[0])


@pytest.mark.parametrize("target", [1e-9, 1e9])
def test_beta_moves_once_per_update_by_the_exact_kl_after_the_last_epoch(target):
    algorithm = ppo_penalty.PPOPenalty(ppo_penalty.Config(target_kl=target, num_epochs=5, num_minibatches=4))
    learner = make_learner()
    for seed in range(3):
        before = algorithm.state["kl_coef"]
        metrics = algorithm.update(learner, make_rollout(learner.policy, steps=8, seed=seed))
        assert metrics["kl_coef"] == before
        assert algorithm.state["kl_coef"] == before * (2.0 if metrics["kl"] >= 1.5 * target else 0.5)


class TestTrustRegion:
    def run(self, kind, config, space=DISCRETE, policy=None, seed=0, reward_scale=1.0):
        learner = make_learner(policy or make_policy(space), train_actor=False, learning_rate=1e-3)
        rollout = make_rollout(learner.policy, steps=64, num_envs=4, seed=seed)
        rollout.reward *= reward_scale
        before = learner.flat.actor.clone()
        metrics = kind(config).update(learner, rollout)
        return learner, before, metrics

    @pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
    @pytest.mark.parametrize("seed", range(3))
    def test_trpo_never_exceeds_max_kl_and_improves_the_surrogate(self, space, seed):
        _, _, metrics = self.run(trpo.TRPO, trpo.Config(max_kl=0.02, cg_damping=0.01), space, seed=seed)
        assert 0.0 < metrics["kl"] <= 0.02
        assert metrics["surrogate_gain"] > 0.0
        assert 0.0 < metrics["step_fraction"] <= 1.0

    def test_npgs_step_costs_about_max_kl(self):
        _, _, metrics = self.run(npg.NPG, npg.Config(max_kl=1e-5, cg_damping=1e-5, cg_iterations=20))
        assert metrics["kl"] == pytest.approx(1e-5, rel=0.1)

    def test_trpo_restores_the_parameters_when_no_step_is_accepted(self, monkeypatch):
        # A constant objective cannot improve, so every try is refused.
        monkeypatch.setattr(Learner, "measure", lambda *_: 0.0)
        learner, before, metrics = self.run(trpo.TRPO, trpo.Config())
        assert metrics["step_fraction"] == 0.0
        assert torch.equal(learner.flat.actor, before)
        assert metrics["kl"] == pytest.approx(0.0, abs=1e-9)

    def test_trpo_shortens_a_step_that_breaks_the_constraint(self):
        # Without damping and with few iterations the quadratic model overshoots on a large region.
        fractions = [
            self.run(trpo.TRPO, trpo.Config(max_kl=1.0, cg_damping=0.0), seed=s)[2]["step_fraction"] for s in range(5)
        ]
        assert min(fractions) < 1.0

    def test_the_critic_does_not_move_a_shared_trunk(self):
        policy = make_policy(shared_trunk=True)
        config = npg.Config(max_kl=1e-30, value_epochs=3)
        learner, before, metrics = self.run(npg.NPG, config, policy=policy)
        torch.testing.assert_close(learner.flat.actor, before, rtol=0, atol=1e-10)
        assert metrics["value_loss"] > 0.0

    def test_fisher_subsample_still_improves(self):
        _, _, metrics = self.run(trpo.TRPO, trpo.Config(fisher_fraction=0.25))
        assert metrics["surrogate_gain"] > 0.0
