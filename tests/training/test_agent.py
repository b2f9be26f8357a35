"""What an agent says besides its actions: V(s) and the probabilities of its choices; and how it shows itself."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from surefoot.errors import NonFiniteError, UsageError
from surefoot.policies.config import PolicyConfig
from surefoot.training.build.parts import initial_policy
from surefoot.training.evaluation.agent import Agent

BOX = spaces.Box(-1.0, 1.0, (4,), np.float32)
OBS = np.linspace(-0.5, 0.5, 20, dtype=np.float32).reshape(5, 4)


def make(actions, *, critic=True, masked=False, observations=BOX, **settings):
    policy = initial_policy(observations, actions, PolicyConfig(**settings), 1, critic=critic, masked=masked)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    return Agent(policy)


class TestValue:
    @pytest.mark.parametrize("normalize", [True, False])
    def test_it_is_the_critics(self, normalize):
        agent = make(spaces.Discrete(2), normalize_observations=normalize)
        with torch.no_grad():
            wanted = agent.policy.value(agent.policy.normalize(torch.from_numpy(OBS))).numpy()
        found = agent.value(OBS)
        assert found.shape == (5,)
        np.testing.assert_array_equal(found, wanted)
        assert isinstance(agent.value(OBS[0]), float)
        assert agent.value(OBS[0]) == pytest.approx(wanted[0], rel=1e-5)

    @pytest.mark.parametrize("memory", ["gru", "lstm"])
    def test_it_depends_on_what_is_remembered(self, memory):
        agent = make(spaces.Discrete(2), memory=memory)
        _, state = agent.predict(OBS)
        assert (agent.value(OBS, state) != agent.value(OBS)).all()
        np.testing.assert_array_equal(agent.value(OBS, state, episode_start=True), agent.value(OBS))

    def test_without_a_critic_it_is_an_error_that_says_so(self):
        with pytest.raises(UsageError, match=r"no critic.*such as ppo"):
            make(spaces.Discrete(2), critic=False).value(OBS)


class TestProbabilities:
    def test_of_a_choice(self):
        agent = make(spaces.Discrete(3, start=5))
        found = agent.probabilities(OBS)
        assert found.shape == (5, 3)
        np.testing.assert_allclose(found.sum(1), 1.0, rtol=1e-6)
        np.testing.assert_array_equal(found.argmax(1) + 5, agent.predict(OBS)[0])
        np.testing.assert_allclose(agent.probabilities(OBS[0]), found[0], rtol=1e-5)

    def test_actions_are_drawn_as_they_say(self):
        agent, draws = make(spaces.Discrete(3)), 20_000
        action, _ = agent.predict(np.repeat(OBS[:1], draws, 0), deterministic=False)
        np.testing.assert_allclose(np.bincount(action, minlength=3) / draws, agent.probabilities(OBS[0]), atol=0.02)

    def test_of_several_choices_and_of_bits(self):
        agent = make(spaces.MultiDiscrete([2, 4]))
        several = agent.probabilities(OBS)
        assert [part.shape for part in several] == [(5, 2), (5, 4)]
        for part in several:
            np.testing.assert_allclose(part.sum(1), 1.0, rtol=1e-6)
        assert [part.shape for part in agent.probabilities(OBS[0])] == [(2,), (4,)]
        bits = make(spaces.MultiBinary((2, 3)))
        found = bits.probabilities(OBS)
        assert found.shape == (5, 2, 3)
        np.testing.assert_array_equal(found > 0.5, bits.predict(OBS)[0])

    def test_an_illegal_action_has_none(self):
        agent = make(spaces.Discrete(3), masked=True)
        found = agent.probabilities(OBS[0], action_masks=[1, 0, 1])
        assert found[1] == 0.0
        assert found.sum() == pytest.approx(1.0)

    def test_they_depend_on_what_is_remembered(self):
        agent = make(spaces.Discrete(2), memory="gru")
        _, state = agent.predict(OBS)
        assert (agent.probabilities(OBS, state) != agent.probabilities(OBS)).all()

    @pytest.mark.parametrize("space", [BOX, spaces.Dict({"go": spaces.Discrete(2), "force": BOX})])
    def test_of_other_actions_the_error_says_what_there_is(self, space):
        kind = "Box\\(4,\\)" if space is BOX else "Dict\\(force, go\\)|Dict\\(go, force\\)"
        with pytest.raises(UsageError, match=rf"these are ({kind}); predict\(obs\) gives the greedy action"):
            make(space).probabilities(OBS)


@pytest.mark.parametrize("ask", ["value", "probabilities"])
def test_weights_that_are_not_finite_are_named(ask):
    agent = make(spaces.Discrete(2))
    for parameter in agent.policy.parameters():
        parameter.data.fill_(np.nan)
    with pytest.raises(NonFiniteError, match="outputs are not finite"):
        getattr(agent, ask)(OBS)


def test_a_wrong_observation_is_an_error():
    agent = make(spaces.Discrete(2))
    for ask in (agent.value, agent.probabilities):
        with pytest.raises(UsageError, match=r"shape \(3,\); the policy expects \(4,\)"):
            ask(np.zeros(3))


def test_repr_is_one_short_line():
    agent = make(spaces.Discrete(2), memory="gru")
    count = sum(parameter.numel() for parameter in agent.policy.parameters())
    assert repr(agent) == f"Agent(Box(4,) → Discrete(2), {count:,} parameters, gru memory)"
    seen = spaces.Dict({"a": BOX, "b": spaces.Tuple([BOX, spaces.Discrete(3)])})
    assert repr(make(BOX, observations=seen)).startswith("Agent(Dict(a, b) → Box(4,), ")
