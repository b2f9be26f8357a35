"""Graders: right solutions pass, wrong ones are rejected with a message that names the mistake."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Normal, kl_divergence

from surefoot.algorithms.ppo_clip import PPOClip
from surefoot.course import EXERCISES, Wrong, check, check_agent, examine
from surefoot.course.grading import answer, same
from surefoot.course.patients import PATIENTS
from surefoot.errors import UsageError
from surefoot.theory import exact

# Right solutions, written as students write them


def my_log_prob(logits, actions):
    return TorchCategorical(logits=logits).log_prob(actions)


def my_return(rewards, gamma):
    total = 0.0
    for reward in reversed(rewards.tolist()):
        total = reward + gamma * total
    return total


def my_reward_to_go(reward, done, gamma):
    returns = reward.clone()
    for t in reversed(range(len(reward) - 1)):
        returns[t] += returns[t + 1] * (~done[t]).float() * gamma
    return returns


def my_vpg_loss(log_prob, value, returns):
    value = value.squeeze()
    advantage = (returns - value).detach()
    return nn.functional.mse_loss(value, returns) - (advantage * log_prob).mean()


def my_td_error(reward, value, next_value, terminated, truncated, gamma):
    return reward + gamma * next_value * (1 - terminated.float()) - value


def my_kl(old_logits, logits):
    return kl_divergence(TorchCategorical(logits=old_logits), TorchCategorical(logits=logits))


def my_surrogate(mdp, old, new):
    rho, advantage = exact.visitation(mdp, old), exact.advantage(mdp, old)
    return exact.expected_return(mdp, old) + np.sum(rho[:, None] * new * advantage)


def my_clip_loss(log_prob, old_log_prob, advantage, eps):
    ratio = torch.exp(log_prob - old_log_prob)
    return -torch.min(ratio * advantage, torch.clamp(ratio, 1 - eps, 1 + eps) * advantage).mean()


def my_next_beta(beta, kl, target):
    if kl >= 1.5 * target:
        return beta * 2
    if kl <= target / 1.5:
        return beta / 2
    return beta


def my_gae(delta, done, gamma, lam):
    advantage, last = torch.zeros_like(delta), torch.zeros(delta.shape[1])
    for t in reversed(range(len(delta))):
        last = delta[t] + gamma * lam * (1 - done[t].float()) * last
        advantage[t] = last
    return advantage


def my_gaussian(mean, log_std, action):
    return Normal(mean, log_std.exp()).log_prob(action).sum(-1)


def my_dual_clip(ratio, advantage, eps, c):
    gain = torch.min(ratio * advantage, torch.clamp(ratio, 1 - eps, 1 + eps) * advantage)
    floor = torch.max(gain, c * advantage)
    return torch.where(advantage < 0, floor, gain)


RIGHT = {
    "log_prob": my_log_prob,
    "discounted_return": my_return,
    "ratio": lambda new, old: torch.exp(new) / torch.exp(old),
    "reward_to_go": my_reward_to_go,
    "reinforce_loss": lambda log_prob, returns: torch.mean(-log_prob * returns),
    "vpg_loss": my_vpg_loss,
    "td_error": my_td_error,
    "kl": my_kl,
    "surrogate": my_surrogate,
    "bound_constant": lambda epsilon, gamma: 4 * epsilon * gamma / (1 - gamma) ** 2,
    "step_scale": lambda curvature, delta: np.sqrt(2 * delta / curvature),
    "clip_loss": my_clip_loss,
    "next_beta": my_next_beta,
    "gae": my_gae,
    "gaussian_log_prob": my_gaussian,
    "dual_clip_gain": my_dual_clip,
}


@pytest.mark.parametrize("name", EXERCISES)
def test_a_right_solution_passes(name, capsys):
    check(name, RIGHT[name])
    assert capsys.readouterr().out == f"✓ {name}: {EXERCISES[name].asks}\n"


@pytest.mark.parametrize("name", EXERCISES)
def test_every_known_mistake_is_wrong_and_told_from_the_others(name):
    """The same words may stand for two ways to write a mistake, but no two mistakes may look alike."""
    exercise = EXERCISES[name]
    cases = exercise.cases()
    outcomes = [(m.said, [answer(m.made, case, exercise.slopes) for case in cases]) for m in exercise.mistakes]
    for said, found in outcomes:
        with pytest.raises(Wrong) as caught:
            check(name, next(m.made for m in exercise.mistakes if m.said == said))
        assert str(caught.value) == f"{name}: {said}"
        for other, theirs in outcomes:
            assert other == said or not all(map(same, found, theirs))


# Wrong solutions, written independently of the lists in the package


def without_log_softmax(logits, action):
    return logits[torch.arange(len(action)), action]


def probabilities(logits, action):
    return TorchCategorical(logits=logits).probs[torch.arange(len(action)), action]


def discount_from_one(rewards, gamma):
    return sum(gamma ** (t + 1) * r for t, r in enumerate(rewards))


def never_restarts(reward, done, gamma):
    returns = reward.clone()
    for t in reversed(range(len(reward) - 1)):
        returns[t] += gamma * returns[t + 1]
    return returns


def in_place(reward, done, gamma):
    for t in reversed(range(len(reward) - 1)):
        reward[t] += gamma * reward[t + 1] * ~done[t]
    return reward


def looks_one_step_ahead(reward, done, gamma):
    returns = reward.clone()
    for t in reversed(range(len(reward) - 1)):
        returns[t] += gamma * returns[t + 1] * ~done[t + 1]
    return returns


def stored_log_probs(log_prob, returns):
    with torch.no_grad():
        return -(log_prob * returns).mean()


def homework_vpg(log_prob, value, returns):
    advantage = returns - value.squeeze()
    return (advantage**2).mean() - (log_prob * advantage).mean()


def unsqueezed(log_prob, value, returns):
    advantage = returns - value
    return (advantage**2).mean() - (log_prob * advantage.detach()).mean()


def done_is_done(reward, value, next_value, terminated, truncated, gamma):
    return reward + gamma * next_value * (1.0 - (terminated | truncated).float()) - value


def reverse_kl(old_logits, logits):
    return kl_divergence(TorchCategorical(logits=logits), TorchCategorical(logits=old_logits))


def surrogate_of_the_new_states(mdp, old, new):
    gain = np.sum(exact.visitation(mdp, new)[:, None] * new * exact.advantage(mdp, old))
    return exact.expected_return(mdp, old) + gain


def clip_max(new, old, advantage, eps):
    ratio = torch.exp(new - old)
    return -torch.max(ratio * advantage, torch.clamp(ratio, 1 - eps, 1 + eps) * advantage).mean()


def clip_only(new, old, advantage, eps):
    return -(torch.clamp(torch.exp(new - old), 1 - eps, 1 + eps) * advantage).mean()


def clip_product(new, old, advantage, eps):
    surr = torch.exp(new - old) * advantage
    return -torch.min(surr, surr.clamp(1 - eps, 1 + eps)).mean()


def old_over_new(new, old, advantage, eps):
    ratio = torch.exp(old - new)
    return -torch.min(ratio * advantage, torch.clamp(ratio, 1 - eps, 1 + eps) * advantage).mean()


def beta_backwards(beta, kl, target):
    return beta / 2 if kl >= 1.5 * target else beta * 2 if kl <= target / 1.5 else beta


def gae_without_ends(delta, done, gamma, lam):
    return my_gae(delta, torch.zeros_like(done), gamma, lam)


def gae_without_lambda(delta, done, gamma, lam):
    return my_gae(delta, done, gamma, 1.0)


def gae_over_envs(delta, done, gamma, lam):
    return my_gae(delta.T, done.T, gamma, lam).T


def gaussian_per_dimension(mean, log_std, action):
    return Normal(mean, log_std.exp()).log_prob(action)


def floor_for_all(ratio, advantage, eps, c):
    gain = torch.min(ratio * advantage, torch.clamp(ratio, 1 - eps, 1 + eps) * advantage)
    return torch.max(gain, c * advantage)


def hole(*_):
    raise NotImplementedError


WRONG = [
    ("log_prob", without_log_softmax, "these are the logits themselves"),
    ("log_prob", probabilities, "these are probabilities; take their logarithm"),
    ("log_prob", hole, "there is still a hole in it"),
    ("discounted_return", discount_from_one, "the first reward is discounted already"),
    ("discounted_return", lambda r, g: r.sum(), "it is not discounted"),
    ("discounted_return", lambda r, g: None, "it returns nothing; end it with `return …`"),
    ("ratio", lambda new, old: new / old, "it divides the logarithms"),
    ("ratio", lambda new, old: 1 / (new - old).exp(), "it is the inverse"),
    ("reward_to_go", never_restarts, "the sum runs on over the end of an episode"),
    ("reward_to_go", looks_one_step_ahead, "the flag is read one step too late"),
    ("reward_to_go", in_place, "it changes its argument `reward`; work on a copy"),
    ("reinforce_loss", lambda lp, r: (lp * r).mean(), "the sign is wrong"),
    ("reinforce_loss", lambda lp, r: -(lp * r).sum(), "it is a sum"),
    ("reinforce_loss", stored_log_probs, "no gradient reaches the policy"),
    ("reinforce_loss", lambda lp, r: -lp * r, r"it returns the shape \[7\]; of a single number was asked for"),
    ("vpg_loss", homework_vpg, "the advantage is not detached"),
    ("vpg_loss", unsqueezed, r"is a \[B, B\] table"),
    ("td_error", done_is_done, "a time limit ends the episode, not the world"),
    ("kl", reverse_kl, r"this is KL\(new‖old\)"),
    ("surrogate", surrogate_of_the_new_states, "the states are the new policy's"),
    ("bound_constant", lambda e, g: 4 * e * g / (1 - g), "1 − γ is squared"),
    ("step_scale", lambda c, d: 2 * d / c, "the root is missing"),
    ("clip_loss", clip_max, "it takes the maximum"),
    ("clip_loss", clip_only, "only the clipped term is used"),
    ("clip_loss", clip_product, "it clips the product with the advantage"),
    ("clip_loss", old_over_new, "the ratio is inverted"),
    ("next_beta", beta_backwards, "it is the wrong way round"),
    ("gae", gae_without_ends, "it runs on over the end of an episode"),
    ("gae", gae_without_lambda, "λ is missing"),
    ("gae", gae_over_envs, "it runs over the envs"),
    ("gae", lambda delta, done, g, k: (1 - done) * delta, "it raises RuntimeError: Subtraction"),
    ("gaussian_log_prob", gaussian_per_dimension, "it returns a number per dimension"),
    ("dual_clip_gain", floor_for_all, "the floor applies to good actions as well"),
]


@pytest.mark.parametrize(("name", "solution", "said"), WRONG, ids=lambda x: getattr(x, "__name__", None))
def test_a_wrong_solution_is_told_what_is_wrong(name, solution, said):
    with pytest.raises(Wrong, match=said) as caught:
        check(name, solution)
    assert str(caught.value).startswith(f"{name}: ")


def test_a_mistake_that_nobody_foresaw_is_shown_in_numbers():
    with pytest.raises(Wrong, match=r"^ratio: it returns \S+ at \[\d\] where \S+ is right$"):
        check("ratio", lambda new, old: (new - old).exp() + 1.0)
    with pytest.raises(Wrong, match="the value is right, but its gradient in `log_prob` is"):
        check("ratio", lambda new, old: (2 * new - new.detach() - old).exp())
    with pytest.raises(Wrong, match="NaN or infinity"):
        check("ratio", lambda new, old: (new - 9.0).log())
    with pytest.raises(Wrong, match="returns a str"):
        check("ratio", lambda new, old: "1.0")
    with pytest.raises(Wrong, match="pass the function itself"):
        check("ratio", 3.0)
    with pytest.raises(UsageError, match="did you mean 'ratio'"):
        check("rato", lambda new, old: new)


def test_a_notebook_shows_the_message_without_a_traceback():
    assert Wrong("too long")._render_traceback_() == ["✗ too long"]


# The homework


def agent(name, loss, *, critic=True, policy=None, value=None):
    class Agent(nn.Module):
        def __init__(self, n_obs, n_actions):
            super().__init__()
            self.name = name
            self.policy = (policy or network)(n_obs, n_actions)
            if critic:
                self.value = (value or network)(n_obs, 1)

        def get_loss(self, data):
            return loss(self, data)

    return Agent


def network(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


def reinforce(self, data):
    return -(data.log_probs * data.returns).mean()


def vpg(self, data, squeeze=True):
    value = self.value(data.states)
    advantage = data.returns - (value.squeeze() if squeeze else value)
    return (advantage**2).mean() - (data.log_probs * advantage).mean()


def ppo(self, data, smaller=torch.min, critic=1.0):
    advantage = data.returns - self.value(data.states).squeeze()
    new = TorchCategorical(logits=self.policy(data.states)).log_prob(data.actions)
    ratio = torch.exp(new - data.log_probs)
    gain = smaller(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage).mean()
    return critic * (advantage**2).mean() - gain


def test_the_numbers_of_the_homework(capsys):
    before = torch.random.get_rng_state()
    for name, loss in {"REINFORCE": reinforce, "VPG": vpg, "PPO": ppo}.items():
        check_agent(agent(name, loss, critic=name != "REINFORCE"))
    said = capsys.readouterr().out
    assert all(f"the loss is {number}" in said for number in ("-0.2369", "0.0618", "0.9314"))
    assert torch.equal(before, torch.random.get_rng_state())


def softmaxed(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, outputs), nn.Softmax(-1))


WRONG_AGENTS = [
    (agent("reinforce", reinforce), "name is 'reinforce'; it must be one of REINFORCE, VPG, PPO"),
    (agent("REINFORCE", reinforce, policy=softmaxed), "must end in a Linear layer"),
    (agent("REINFORCE", lambda s, d: (d.log_probs * d.returns).mean()), "the minus is missing"),
    (agent("REINFORCE", lambda s, d: -(d.log_probs * d.returns).sum()), "divide by N·T"),
    (agent("REINFORCE", lambda s, d: -(d.log_probs * d.returns)), r"the shape \[10, 5\]; it is one number"),
    (agent("VPG", vpg, critic=False), "the agent has no network `self.value`"),
    (agent("VPG", vpg, value=lambda i, o: network(i, 6)), r"`self.value` turns \[8, 32\] into \[8, 6\]"),
    (agent("VPG", lambda s, d: vpg(s, d, squeeze=False)), "squeeze V"),
    (agent("VPG", reinforce), "the loss is -0.2369, not 0.0618"),
    (agent("PPO", lambda s, d: ppo(s, d, torch.max)), "it takes the maximum of the two terms"),
    (agent("PPO", lambda s, d: ppo(s, d, critic=0.0)), "the value loss is missing"),
    (agent("PPO", lambda s, d: ppo(s, d, lambda free, cut: free)), "nothing is clipped"),
    (agent("PPO", hole), "there is still a hole in get_loss"),
]


@pytest.mark.parametrize(("kind", "said"), WRONG_AGENTS, ids=[said for _, said in WRONG_AGENTS])
def test_a_wrong_agent_is_told_what_is_wrong(kind, said):
    with pytest.raises(Wrong, match=said):
        check_agent(kind)


# Whole algorithms


DIAGNOSES = {
    "A": "a time limit counts as the end of the world",
    "B": "it takes the maximum of the clipped and the unclipped term",
    "C": "rewards leak back over the end of an episode",
    "D": "its ratio is always 1",
    "E": "the entropy bonus has the wrong sign",
}


@pytest.mark.parametrize("name", PATIENTS)
def test_every_patient_has_a_diagnosis_of_its_own(name):
    with pytest.raises(Wrong, match=DIAGNOSES[name]):
        examine(PATIENTS[name])


def test_the_library_s_own_ppo_is_healthy(capsys):
    examine(PPOClip)
    assert capsys.readouterr().out.count("✓ PPOClip") == 8
    with pytest.raises(UsageError, match="takes the class of an algorithm"):
        examine(PPOClip.config_type)
