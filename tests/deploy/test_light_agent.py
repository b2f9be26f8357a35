"""The light agent does what the agent does, without torch."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import surefoot
from surefoot.deploy.choosing import Noise, choose
from surefoot.deploy.interpret import execute, split_rows
from surefoot.deploy.light_agent import LightAgent
from surefoot.deploy.trials import expected, random_trials
from surefoot.errors import NonFiniteError, UsageError
from surefoot.training.evaluation.agent import Agent
from tests.deploy.making import CASES, KINDS, make_case, make_kind
from tests.marks import quick

RUNS = Path(__file__).parent.parent / "fixtures" / "runs-0.1.0"
TOLERANCE = {"rtol": 2e-6, "atol": 2e-6}


def compare(policy, program):
    trials = random_trials(program, 6, 8, seed=1)
    wanted = expected(policy, program, trials)
    memory = np.zeros((6, program.memory_size), np.float32) if program.memory is not None else None
    for t in range(8):
        if memory is not None:
            memory[trials.begins[:, t]] = 0.0
        results = execute(program, split_rows(program, trials.rows[:, t], memory))
        memory = None if program.memory is None else results[program.memory]
        params = np.concatenate([results[at] for at in program.params], axis=1)
        np.testing.assert_allclose(params, wanted.params[:, t], **TOLERANCE)
        sure = wanted.margin[:, t] > 1e-5
        action = np.concatenate(choose(program, results, None), axis=1)
        np.testing.assert_allclose(action[sure], wanted.action[:, t][sure], **TOLERANCE)


def name(number):
    return "-".join(map(str, CASES[number]))


@pytest.mark.parametrize("number", quick(range(len(CASES)), *range(5, len(CASES), 13)), ids=name)
def test_every_pair_of_spaces_memory_and_mask(number):
    compare(*make_case(*CASES[number]))


SOME = ("beta-hybrid", "gsde-hybrid", "state-hybrid", "embedding", "small", "table", "layer-norm", "privileged")


@pytest.mark.parametrize("kind", quick(KINDS, *SOME))
def test_every_kind_of_head_and_network(kind):
    compare(*make_kind(kind))


@pytest.mark.parametrize("kind", quick(KINDS, "beta-hybrid", "gsde-hybrid", "bits"))
def test_actions_drawn_with_the_same_noise_are_the_same(kind):
    policy, program = make_kind(kind)
    trials = random_trials(program, 50, 1, seed=2)
    drawn = policy.noise(1, 50, torch.Generator().manual_seed(0))[0]
    noise = Noise(drawn.rows.numpy(), None if drawn.matrix is None else drawn.matrix.numpy())

    def draws(begins):
        return noise.rows[:, None], None if noise.matrix is None else noise.matrix[:, None]

    wanted = expected(policy, program, trials, draws)
    memory = np.zeros((50, program.memory_size), np.float32) if program.memory is not None else None
    results = execute(program, split_rows(program, trials.rows[:, 0], memory))
    action = np.concatenate(choose(program, results, noise), axis=1)
    sure = wanted.margin[:, 0] > 1e-5
    assert sure.sum() > 40
    np.testing.assert_allclose(action[sure], wanted.action[:, 0][sure], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["gsde-hybrid", "beta", "linear", "bits", "scalar"])
def test_predict_gives_the_same_for_one_and_for_many(kind):
    policy, program = make_kind(kind)
    agent, light = Agent(policy), LightAgent(program)
    space = policy.layout.space
    space.seed(0)
    one = space.sample()
    many = np.stack([space.sample() for _ in range(4)])
    for observation in (one, many):
        (wanted, state), (found, light_state) = agent.predict(observation), light.predict(observation)
        same(found, wanted)
        if state is not None:
            np.testing.assert_allclose(light_state, state, **TOLERANCE)
            starts = None if observation is one else [True, False, True, False]
            again = agent.predict(observation, state, starts)
            same(light.predict(observation, state, starts)[0], again[0])
        else:
            assert light_state is None
        drawn, _ = light.predict(observation, deterministic=False)
        assert type(drawn) is type(wanted)
        if observation is one:
            assert policy.action_space.contains(drawn)


def same(found, wanted):
    """The same structure, types and numbers."""
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            same(found[key], wanted[key])
    elif isinstance(wanted, tuple):
        for left, right in zip(found, wanted, strict=True):
            same(left, right)
    else:
        assert np.asarray(found).dtype == np.asarray(wanted).dtype
        assert np.shape(found) == np.shape(wanted)
        np.testing.assert_allclose(found, wanted, **TOLERANCE)


def test_a_mask_is_obeyed_by_single_and_batched_predictions():
    policy, program = make_case("flat", "Discrete", "none", True)
    agent, light = Agent(policy), LightAgent(program)
    obs = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    masks = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]]
    found, _ = light.predict(obs, action_masks=masks)
    assert found[:3].tolist() == [2, 3, 4]
    same(found, agent.predict(obs, action_masks=masks)[0])
    assert light.predict(obs[0], action_masks=[0, 0, 1])[0] == 4
    with pytest.raises(UsageError, match="no legal action"):
        light.predict(obs[0], action_masks=[0, 0, 0])


def test_draws_follow_the_distribution():
    policy, program = make_case("flat", "Discrete", "none", False)
    obs = np.array([0.5, -1.0, 2.0], np.float32)
    drawn, _ = LightAgent(program).predict(np.repeat(obs[None], 20_000, 0), deterministic=False)
    chances = Agent(policy).probabilities(obs)
    np.testing.assert_allclose(np.bincount(drawn - 2, minlength=3) / 20_000, chances, atol=0.02)


def test_gsde_keeps_its_noise_within_an_episode():
    _, program = make_kind("gsde")
    light, obs = LightAgent(program), np.array([0.5, -1.0, 2.0], np.float32)
    actions = [light.predict(obs, None, start, False)[0] for start in (True, *[False] * 8)]
    changes = [not np.array_equal(a, b) for a, b in pairwise(actions)]
    assert changes == [False, False, False, True, False, False, False, True]  # redrawn every 4 steps


def test_what_does_not_fit_is_an_error_of_ours():
    _, program = make_kind("gsde-hybrid")
    light = LightAgent(program)
    with pytest.raises(UsageError, match=r"shape \(4,\); the policy expects \(3,\)"):
        light.predict(np.zeros(4))
    with pytest.raises(UsageError, match="expects 8 numbers for each observation"):
        light.predict(np.zeros(3), np.zeros(7))
    with pytest.raises(NonFiniteError, match="outputs are not finite"):
        light.predict(np.full(3, np.nan))
    assert repr(light) == "LightAgent(Box(3,) → Dict(a, b), 8 numbers of memory)"


@pytest.mark.parametrize("light", [False, True])
def test_nothing_that_is_given_is_ignored_or_broadcast(light):
    obs, memory = np.zeros((4, 3), np.float32), np.zeros((4, 6), np.float32)
    policy, program = make_case("flat", "Discrete", "gru", False)
    agent = LightAgent(program) if light else Agent(policy)
    for given, said in (
        ({"action_masks": [[0, 1, 0]] * 4}, "was not used to train this policy"),  # it would not be obeyed
        ({"state": [1, 2, 3]}, "expects 6 numbers for each observation"),
        ({"state": memory[0]}, "expects 6 numbers for each observation"),
        ({"state": "abc"}, "not made of numbers"),
        ({"state": memory, "episode_start": [True, False]}, "one for each of the 4 observations"),
    ):
        with pytest.raises(UsageError, match=said):
            agent.predict(obs, **given)
    for wrong in (["a"] * 3, [None] * 3, [1j] * 3, [[1], [1, 2]]):
        with pytest.raises(UsageError, match=r"made of numbers|does not fit"):
            agent.predict(wrong)
    assert agent.predict(obs[:0])[0].shape == (0,)
    assert agent.predict([1e300, 0, 0])[0] in (2, 3, 4)  # without a warning
    policy, program = make_case("flat", "Discrete", "none", True)
    agent = LightAgent(program) if light else Agent(policy)
    with pytest.raises(UsageError, match="1 action masks for 4 observations"):
        agent.predict(obs, action_masks=[[0, 1, 0]])


@pytest.mark.parametrize("name", ["ppo-normalized", "ppo-gsde", "ppo-tanh", "ppo-lstm-torch", "ppo-gru", "reinforce"])
def test_old_runs_act_the_same(name):
    agent, light = surefoot.load(RUNS / name), surefoot.load(RUNS / name, backend="numpy")
    obs = np.random.default_rng(0).normal(size=(50, *agent.policy.layout.shape)).astype(np.float32)
    same(light.predict(obs)[0], agent.predict(obs)[0])


def test_it_imports_neither_torch_nor_gymnasium():
    code = (
        "import sys, surefoot\n"
        f"agent = surefoot.load({str(RUNS / 'ppo-gru')!r}, backend='numpy')\n"
        "action, state = agent.predict([0.0] * agent.program.layout.numbers)\n"
        "agent.predict([0.0] * agent.program.layout.numbers, state, deterministic=False)\n"
        "heavy = {'torch', 'gymnasium', 'rich', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_wrong_ways_of_loading_are_named():
    with pytest.raises(UsageError, match="backend='jax' is not one of: torch, numpy"):
        surefoot.load(RUNS / "ppo-gru", backend="jax")
    with pytest.raises(UsageError, match="cannot use an encoder"):
        surefoot.load(RUNS / "ppo-gru", backend="numpy", encoder=torch.nn.Identity)
    light = surefoot.load(RUNS / "ppo-gru", backend="numpy")
    with pytest.raises(UsageError, match="not with a LightAgent"):
        surefoot.evaluate(light, "CartPole-v1", episodes=1)
