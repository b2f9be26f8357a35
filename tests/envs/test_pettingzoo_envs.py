"""Envs of several agents behind one policy."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

import surefoot
from surefoot.algorithms import ALGORITHMS
from surefoot.cli.main import main
from surefoot.envs.config import EnvConfig
from surefoot.envs.make import make_env
from surefoot.envs.pettingzoo_copy import ParallelMaker
from surefoot.envs.pettingzoo_envs import ParallelEnvs
from surefoot.envs.seeds import derive_seed, episode_seed
from surefoot.errors import EnvError, NonFiniteError, UsageError
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.training.config.resolve import resolve
from surefoot.training.life.trust import foreign_code
from tests import parallel_worlds
from tests.building import make_collector
from tests.contracts.test_exact_resume import Die, same
from tests.parallel_worlds import Hybrid, Latecomer, MaskedInObs, MaskedWorld, RandomWorld, World

FILE = Path(parallel_worlds.__file__)
QUICK = {"preset": None, "progress": False, "seed": 0, "eval_episodes": 2, "num_envs": 2, "trust": True}


def steps_of(envs, count, actions=None):
    envs.reset()
    return [envs.step(np.zeros(envs.num_envs, np.int64) if actions is None else actions) for _ in range(count)]


def column(steps, name, row):
    return [bool(getattr(step, name)[row]) for step in steps]


def test_an_agents_end_is_its_own_and_its_row_is_invalid_until_the_copy_is_reset():
    envs = ParallelEnvs(World, 2, 0)
    assert (envs.num_envs, envs.num_agents) == (6, 3)
    steps = steps_of(envs, 6)
    for copy in (0, 3):  # lives: a 2 steps, b 4, c 3
        assert column(steps, "valid", copy) == [True, True, False, False, True, True]
        assert column(steps, "terminated", copy) == [False, True, False, False, False, True]
        assert column(steps, "valid", copy + 1) == [True] * 6
        assert column(steps, "truncated", copy + 1) == [False, False, False, True, False, False]
        assert not any(column(steps, "terminated", copy + 1))
        assert column(steps, "valid", copy + 2) == [True, True, True, False, True, True]
        for row in range(copy, copy + 3):  # the first observation of everybody's next episode
            assert column(steps, "first", row) == [False, False, False, True, False, False]
            assert [float(step.obs[row, 1]) for step in steps][3] == 0
    assert [sorted(step.final_obs) for step in steps[:4]] == [[], [0, 3], [2, 5], [1, 4]]
    assert steps[1].final_obs[0][1] == 2
    assert steps[3].final_obs[1][1] == 4
    assert steps[3].final_info[1] == {"time": 4}
    assert [float(step.reward[2]) for step in steps] == [3, 4, 5, 0, 3, 4]
    assert steps[2].obs[0, 1] == 1  # a's row keeps what it saw before its end


def test_only_live_agents_act_and_each_gets_its_own_action():
    envs = ParallelEnvs(World, 1, 0)
    steps_of(envs, 4, actions=np.array([1, 0, 1]))
    assert envs.copies[0].env.received == [
        {"a": 1, "b": 0, "c": 1}, {"a": 1, "b": 0, "c": 1}, {"b": 0, "c": 1}, {"b": 0}
    ]  # fmt: skip


def test_every_episode_of_every_copy_has_a_seed_of_its_own():
    envs = ParallelEnvs(World, 2, 7)
    steps_of(envs, 8)
    assert [copy.env.seeds for copy in envs.copies] == [
        [episode_seed(7, copy, episode) for episode in range(3)] for copy in (0, 1)
    ]


def test_max_episode_steps_cuts_those_who_are_still_there():
    envs = ParallelEnvs(World, 1, 0, max_episode_steps=3)
    step = steps_of(envs, 3)[-1]
    assert step.truncated.tolist() == [False, True, True]
    assert step.terminated.tolist() == [False, False, True]  # c ended by itself at the same step
    assert step.start.all()
    assert envs.time_limit == 3


def test_an_agent_that_comes_late_begins_then():
    envs = ParallelEnvs(Latecomer, 1, 0)
    steps = steps_of(envs, 5)
    assert column(steps, "valid", 2) == [False, False, True, False, False]
    assert column(steps, "first", 2) == [False, True, False, False, False]
    assert column(steps, "terminated", 2) == [False, False, True, False, False]


def test_an_agent_that_ended_does_not_come_back_though_the_env_goes_on_naming_it():
    class Lingering(World):
        def step(self, actions):
            ghosts = [agent for agent in self.possible_agents if agent not in actions]
            self.agents = list(actions)
            found = super().step(actions)
            self.agents = [*self.agents, *ghosts, *(agent for agent in actions if agent not in self.agents)]
            return found

    steps = steps_of(ParallelEnvs(Lingering, 1, 0), 4)
    assert column(steps, "valid", 0) == [True, True, False, False]
    assert column(steps, "first", 0) == [False, False, False, True]


@pytest.mark.parametrize("world", [MaskedWorld, MaskedInObs])
def test_masks_come_from_info_or_from_the_observation(world):
    envs = ParallelEnvs(world, 2, 0)
    assert envs.layout.mask_size == 2
    torch.manual_seed(0)
    policy = ActorCritic(envs.observation_space, envs.action_space, PolicyConfig(), masked=True)
    rollout = make_collector(envs, policy, 9).collect()
    assert rollout.valid.sum() > 30  # the envs assert that every action was legal
    assert [len(copy.env.seeds) for copy in envs.copies] == [3, 3]  # the first was not asked twice


def test_rollouts_count_steps_and_episodes_per_agent():
    envs = ParallelEnvs(World, 2, 0)
    torch.manual_seed(0)
    policy = ActorCritic(envs.observation_space, envs.action_space, PolicyConfig(memory="gru", memory_size=4))
    collector = make_collector(envs, policy, 8)
    rollout = collector.collect()
    assert rollout.num_steps == 2 * 2 * (2 + 4 + 3)
    found = {(episode.env % 3, episode.ret, episode.length) for episode in collector.tracker.take()}
    assert found == {(0, 3.0, 2), (1, 14.0, 4), (2, 12.0, 3)}
    cut = (rollout.truncated & ~rollout.terminated).nonzero().tolist()
    assert cut == [[3, 1], [3, 4], [7, 1], [7, 4]]
    assert rollout.context.start.nonzero()[:, 0].unique().tolist() == [0, 4, 8]


def test_whole_episodes_of_every_agent_and_then_idle_copies():
    envs = ParallelEnvs(RandomWorld, 2, 0)
    torch.manual_seed(0)
    policy = ActorCritic(envs.observation_space, envs.action_space, PolicyConfig())
    collector = make_collector(envs, policy, 8, episodes_per_env=2)
    for _ in range(3):
        rollout = collector.collect()
        assert (rollout.done & rollout.valid).sum(0).tolist() == [2] * 6
        assert all(copy.steps == 0 for copy in envs.copies)
        assert len(collector.tracker.take()) == 12


def test_whole_episodes_need_everybody():
    envs = ParallelEnvs(Latecomer, 1, 0)
    envs.reset()
    with pytest.raises(UsageError, match="began without all of its agents"):
        envs.step(np.zeros(3, np.int64), active=np.ones(3, np.bool_))


def test_unequal_spaces_are_refused_by_name():
    class Unequal(World):
        def action_space(self, agent):
            return spaces.Discrete(3 if agent == "c" else 2)

    with pytest.raises(UsageError, match=r"action_space of c is Discrete\(3\), that of a Discrete\(2\)"):
        ParallelEnvs(Unequal, 1, 0)


class Faulty(World):
    """One fault at the second step."""

    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def step(self, actions):
        found = list(super().step(actions))
        if self.time == 2:
            if self.fault == "raise":
                raise ZeroDivisionError("the simulator broke")
            if self.fault == "no reward":
                del found[1]["b"]
            if self.fault == "vanish":
                self.agents.remove("b")
            if self.fault == "stranger":
                self.agents.append("z")
            if self.fault == "shape":
                found[0]["b"] = np.zeros(2, np.float32)
            if self.fault == "nan obs":
                found[0]["b"][:] = np.nan
            if self.fault == "nan reward":
                found[1]["c"] = float("nan")
            if self.fault == "nan final":
                found[0]["a"][:] = np.nan
            if self.fault == "text":
                found[1]["b"] = "much"
        return found


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("raise", EnvError, r"step of world \(copy 1, seed \d+, episode 0, step 2\) raised ZeroDivisionError"),
        ("no reward", EnvError, r"world \(copy 1.*returned no reward for b"),
        ("vanish", EnvError, r"b of world \(copy 1.*neither terminated nor truncated"),
        ("stranger", EnvError, r"\['z'\], not among its possible_agents"),
        ("shape", EnvError, r"b of world \(copy 1.*not in its space"),
        ("nan obs", NonFiniteError, r"observation of b of world \(copy 1"),
        ("nan reward", NonFiniteError, r"reward of c of world \(copy 1"),
        ("nan final", NonFiniteError, r"final observation of a of world \(copy 1"),
        ("text", EnvError, r"b of world \(copy 1.*returned the reward 'much'"),
    ],
)
def test_faults_name_agent_copy_seed_episode_and_step(fault, kind, message):
    made = iter([World(), Faulty(fault)])
    envs = ParallelEnvs(lambda: next(made), 2, 0)
    with pytest.raises(kind, match=message):
        steps_of(envs, 3)


def test_an_env_that_nobody_enters_is_an_error():
    class Empty(World):
        def present(self):
            return []

    with pytest.raises(EnvError, match="no agents after its reset"):
        ParallelEnvs(Empty, 1, 0).reset()


def test_all_copies_are_closed_and_one_env_for_all_is_refused():
    envs = ParallelEnvs(World, 3, 0)
    envs.close()
    assert all(copy.env.closed for copy in envs.copies)
    one = World()
    with pytest.raises(UsageError, match="same env twice"):
        ParallelEnvs(lambda: one, 2, 0)
    assert one.closed


def test_open_episodes_are_replayed_and_compared():
    envs, again = (ParallelEnvs(RandomWorld, 3, 5) for _ in range(2))
    steps = steps_of(envs, 7)
    state, last = envs.state_dict(), steps[-1].obs
    again.reset()
    assert again.load_state_dict(state, last) == []
    np.testing.assert_array_equal(again.observations, last)
    for _ in range(12):
        one, other = (e.step(np.ones(9, np.int64)) for e in (envs, again))
        for name in ("obs", "reward", "terminated", "truncated", "valid", "first"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    last = last.copy()
    last[4] += 1  # copy 1 does not come back as it was
    lost = ParallelEnvs(RandomWorld, 3, 5)
    assert lost.load_state_dict(state, last) in ([3, 4, 5], [3, 4, 5, 6, 7, 8])
    assert lost.observations[3:6, 1].tolist() == [0, 0, 0]


def test_nested_actions_go_through_a_checkpoint():
    envs, again = (ParallelEnvs(Hybrid, 2, 5) for _ in range(2))
    torch.manual_seed(0)
    policy = ActorCritic(envs.observation_space, envs.action_space, PolicyConfig())
    collector = make_collector(envs, policy, 5)
    collector.collect()
    state = collector.state_dict()
    assert again.load_state_dict(state["envs"], state["last_obs"].numpy()) == []


def settings(algo):
    whole = {"max_episode_steps": 8, "total_steps": 800} if algo == "reinforce" else {"total_steps": 600}
    length = {} if algo == "reinforce" else {"rollout_length": 4 if algo == "a2c" else 12}
    every = {"log_every": 100, "checkpoint_every": 150, "eval_every": 250, "selection_episodes": 2}
    return {**QUICK, **whole, **length, **every, "normalize_observations": True, "normalize_rewards": True}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_killed_run_resumes_to_the_bytes_of_an_uninterrupted_one(algo, tmp_path):
    env = f"pettingzoo:{FILE}:RandomWorld"
    whole = surefoot.train(env, algo, run_dir=tmp_path / "whole", **settings(algo))
    die = Die(whole.result["updates"] * 2 // 3)
    with pytest.raises(KeyboardInterrupt):
        surefoot.train(env, algo, run_dir=tmp_path / "killed", callbacks=[die], **settings(algo))
    same(surefoot.resume(tmp_path / "killed", progress=False), whole)


def test_memory_resumes_exactly_too(tmp_path):
    env, how = f"pettingzoo:{FILE}:RandomWorld", {**settings("ppo"), "memory": "gru", "num_minibatches": 3}
    whole = surefoot.train(env, run_dir=tmp_path / "whole", **how)
    with pytest.raises(KeyboardInterrupt):
        surefoot.train(env, run_dir=tmp_path / "killed", callbacks=[Die(5)], **how)
    same(surefoot.resume(tmp_path / "killed", progress=False, trust=True), whole)


def test_the_number_of_rows_is_printed_and_checked(capsys):
    words = ["train", f"pettingzoo:{FILE}:World", "--num-envs", "2", "--rollout-length", "8", "--eval-episodes", "2"]
    assert main([*words, "--total-steps", "96", "--seed", "0"]) == 0
    out = capsys.readouterr().out
    assert "2 copies × 3 agents = 6 envs" in out
    assert "surefoot eval " in out
    assert "surefoot video" not in out
    assert main([*words, "--total-steps", "40"]) == 2  # 6 rows × 8 steps
    assert "less than one rollout of 48" in capsys.readouterr().err


def test_an_evaluation_plays_whole_episodes_of_everybody():
    run = surefoot.train(f"pettingzoo:{FILE}:make", **QUICK, total_steps=96, rollout_length=8)
    assert run.result["eval"]["mean_return"] == pytest.approx((3 + 14 + 12) / 3)  # the mean of the agents' returns
    assert run.result["eval"]["mean_length"] == 4
    agent = surefoot.load(run)
    found = surefoot.evaluate(agent, f"pettingzoo:{FILE}:RandomWorld", episodes=40, deterministic=False)
    again = surefoot.evaluate(agent, f"pettingzoo:{FILE}:RandomWorld", episodes=40, deterministic=False)
    assert found == again
    assert len(found.returns) == 40
    for episode, length in enumerate(found.lengths):  # each with its own seed, whichever copy played it
        drawn = np.random.default_rng(derive_seed(derive_seed(0, "asked"), "eval", episode)).integers(2, 8, size=3)
        assert length == max(drawn)
    cut = surefoot.evaluate(agent, f"pettingzoo:{FILE}:make", episodes=3, max_steps=1)
    assert (cut.cut, cut.lengths) == (3, (1, 1, 1))
    assert cut.returns == pytest.approx([2.0] * 3)


@pytest.mark.parametrize("memory", ["none", "lstm"])
@pytest.mark.parametrize("world", ["MaskedWorld", "MaskedInObs", "Latecomer", "Hybrid"])
def test_every_kind_of_world_trains_and_evaluates(world, memory):
    how = {**QUICK, "memory": memory, "num_minibatches": 3}
    run = surefoot.train(f"pettingzoo:{FILE}:{world}", **how, total_steps=300, rollout_length=10)
    assert run.result["eval"]["episodes"] == 2


def test_another_env_to_evaluate_in_must_have_the_same_spaces():
    env = f"pettingzoo:{FILE}:World"
    how = {**QUICK, "total_steps": 96, "rollout_length": 8}
    run = surefoot.train(env, **how, eval_env=f"pettingzoo:{FILE}:RandomWorld")
    assert run.result["eval"]["episodes"] == 2
    with pytest.raises(UsageError, match="the policy is trained on"):
        surefoot.train(env, **how, eval_env=f"pettingzoo:{FILE}:Hybrid")


def config(env, **more):
    return EnvConfig(env=f"pettingzoo:{env}", **more)


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        ("", {}, "name a module or file.py:factory"),
        ("nowhere", {}, "No module named 'nowhere'"),
        ("json", {}, "has no parallel_env"),
        ("json:nothing", {}, "there is no 'nothing' in json"),
        ("json.decodr", {}, "did you mean 'decoder'"),
        ("json:__name__", {}, "is not a function that makes an env"),
        ("gymnasium:make", {"env_kwargs": {"id": "CartPole-v1"}}, "drop pettingzoo:|not a PettingZoo parallel env"),
        (f"{FILE}:World", {"wrappers": ("TimeLimit",)}, "wrappers cannot be used"),
        (f"{FILE}:World", {"frame_stack": 2}, "frame_stack cannot be used"),
        (f"{FILE}:World", {"workers": 2}, "workers cannot be used"),
        (f"{FILE}:FILE", {}, "there is no 'FILE'"),
    ],
)
def test_what_cannot_be_made_says_why(env, settings, message):
    with pytest.raises(UsageError, match=message):
        ParallelMaker(config(env, **settings))()


def test_keywords_reach_the_env_and_wrong_ones_are_refused():
    assert ParallelMaker(config(f"{FILE}:make", env_kwargs={"size": 3}))().extra == {"size": 3}
    wrong = ParallelMaker(config(f"{FILE}:strict", env_kwargs={"x": 1}))
    with pytest.raises(UsageError, match=r"env_kwargs=\{'x': 1\} do not fit"):
        wrong()


def test_a_module_of_pettingzoos_kind(monkeypatch):
    monkeypatch.setattr(parallel_worlds, "parallel_env", World, raising=False)
    assert isinstance(ParallelMaker(config("tests.parallel_worlds"))(), World)


@pytest.mark.skipif(find_spec("pettingzoo") is not None, reason="the package is here")
def test_without_the_package_the_extra_is_named():
    with pytest.raises(UsageError, match=r'pip install "surefoot\[pettingzoo\]"'):
        ParallelMaker(config("pettingzoo.butterfly.pistonball_v6"))


def test_a_run_of_somebody_else_needs_trust(tmp_path, monkeypatch):
    surefoot.train(f"pettingzoo:{FILE}:RandomWorld", run_dir=tmp_path / "run", **settings("ppo"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of somebody else"))
    with pytest.raises(UsageError, match="names code that would be"):
        surefoot.resume(tmp_path / "run", progress=False)


def test_what_only_a_file_names_needs_trust(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(f'env = "pettingzoo:{FILE}:World"\n')
    assert foreign_code(resolve(config_file=file)) == [f"env = pettingzoo:{FILE}:World"]
    assert foreign_code(resolve(f"pettingzoo:{FILE}:World")) == []


def test_it_is_no_env_to_film_or_examine():
    for made in (lambda: make_env(config(f"{FILE}:World")), lambda: make_env(EnvConfig(), World)):
        with pytest.raises(UsageError, match="several agents"):
            made()
    with pytest.raises(UsageError, match="several agents"):
        surefoot.train(f"pettingzoo:{FILE}:World", **QUICK, total_steps=96, rollout_length=8, video_every=10)


@pytest.mark.filterwarnings("ignore")  # of pygame and pymunk
def test_the_real_pistons(monkeypatch):
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pymunk")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    made = ParallelMaker(config("pettingzoo.butterfly.pistonball_v6", env_kwargs={"n_pistons": 3}))
    envs = ParallelEnvs(made, 1, 0, 4)
    steps = steps_of(envs, 4, actions=np.zeros((3, 1), np.float32))
    assert steps[-1].truncated.all()
    assert steps[-1].start.all()
    envs.close()


@pytest.mark.filterwarnings("ignore")
def test_the_real_spread():
    pytest.importorskip("mpe2")
    run = surefoot.train("pettingzoo:mpe2.simple_spread_v3", **QUICK, total_steps=300, rollout_length=20)
    assert run.result["eval"]["mean_length"] == 25
