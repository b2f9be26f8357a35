"""Functional envs in JAX. They are skipped without it: `pip install "surefoot[jax]"`, and Brax for the last ones."""

import numpy as np
import pytest
import torch

import surefoot
from surefoot.doctor import examine
from surefoot.envs.config import EnvConfig
from surefoot.envs.vector_envs import vector_seed
from surefoot.errors import UsageError
from surefoot.training.build.envs import ready_envs
from tests.contracts.test_exact_resume import Die, weights

jax = pytest.importorskip("jax", reason="JAX is an extra")

from surefoot.envs.jax_backends import Brax, OwnJax  # noqa: E402
from surefoot.envs.jax_envs import JaxEnvs, JaxVectorEnv  # noqa: E402
from tests.functional_envs import Changing, Choices, Privileged, Push, Whole  # noqa: E402

PUSH = "jax:tests.functional_envs:Push"
QUICK = {"rollout_length": 16, "num_envs": 4, "seed": 0, "progress": False, "preset": None}


def same(left, right):
    for name in ("policy.safetensors", "policy.json", "state.safetensors"):
        assert (weights(left) / name).read_bytes() == (weights(right) / name).read_bytes()
    assert (left.path / "metrics.jsonl").read_bytes() == (right.path / "metrics.jsonl").read_bytes()


def key_of(seed, index, episode):
    return jax.random.fold_in(jax.random.fold_in(jax.random.PRNGKey(seed), index), episode)


@pytest.mark.parametrize(("kind", "limit"), [(Push, 4), (Choices, None)])
def test_every_episode_is_that_of_its_own_key_and_ends_with_its_true_observation(kind, limit):
    env, seed = kind(), 3
    envs = JaxVectorEnv(env, 3, max_episode_steps=limit)
    obs, _ = envs.reset(seed=seed)
    states = [env.reset(key_of(seed, index, 0)) for index in range(3)]
    episode, steps, generator = [0, 0, 0], [0, 0, 0], np.random.default_rng(0)
    step, cuts, overs = jax.jit(env.step), 0, 0
    for _ in range(20):
        action = generator.uniform(-1, 1, (3, 1)).astype(np.float32) * 4
        action = (action[:, 0] > 0).astype(np.int32) if kind is Choices else action
        obs, reward, terminated, truncated, info = envs.step(jax.numpy.asarray(action))
        for i in range(3):
            states[i], steps[i] = step(states[i], action[i]), steps[i] + 1
            over = abs(float(states[i].x)) > 2
            cut = steps[i] == (limit or 3) and not over
            np.testing.assert_allclose(info["final_obs"][i], states[i].obs, rtol=1e-6)
            assert float(reward[i]) == pytest.approx(float(states[i].reward))
            assert (bool(terminated[i]), bool(truncated[i])) == (over, cut)
            cuts, overs = cuts + cut, overs + over
            if over or cut:
                episode[i], steps[i] = episode[i] + 1, 0
                states[i] = env.reset(key_of(seed, i, episode[i]))
            np.testing.assert_allclose(obs[i], states[i].obs, rtol=1e-6)
    assert cuts > 0
    assert overs > 0


def test_tensors_and_arrays_share_their_memory():
    envs = JaxEnvs(JaxVectorEnv(Push(), 64), 0)
    first = envs.reset()
    assert first.data_ptr() == envs.own.carry.state.obs.unsafe_buffer_pointer()
    action = torch.zeros(64, 1)
    given = envs.envs.array(action)
    assert given.unsafe_buffer_pointer() == action.data_ptr() or action.data_ptr() % 64
    step = envs.step(action)
    assert step.obs.data_ptr() == envs.own.carry.state.obs.unsafe_buffer_pointer()
    assert step.terminated.dtype == torch.bool


def test_envs_that_are_not_active_stay_as_they_are():
    envs = JaxEnvs(JaxVectorEnv(Push(), 4, max_episode_steps=2), 0)
    before = envs.reset().clone()
    active = torch.tensor([True, False, True, False])
    for _ in range(3):
        step = envs.step(torch.ones(4, 1), active)
    assert step.valid.tolist() == active.tolist()
    assert torch.equal(step.obs[~active], before[~active])
    assert not torch.equal(step.obs[active], before[active])


def test_a_ready_made_one_trains_with_a_critic_that_sees_more():
    envs = JaxVectorEnv(Privileged(), 4, max_episode_steps=8)
    settings = {name: value for name, value in QUICK.items() if name != "num_envs"}
    run = surefoot.train(envs, total_steps=256, critic_obs=["privileged_state"], **settings)
    assert run.result["total_steps"] == 256
    obs = {"state": np.zeros(1, np.float32), "privileged_state": np.zeros(2, np.float32)}
    assert surefoot.load(run).predict(obs)[0].shape == (1,)


def test_the_first_env_of_another_process_goes_on_counting():
    one, other = JaxVectorEnv(Push(), 4), JaxVectorEnv(Push(), 2, first=2)
    np.testing.assert_array_equal(one.reset(seed=5)[0][2:], other.reset(seed=5)[0])


@pytest.mark.parametrize("name", ["Push", pytest.param("Choices", marks=pytest.mark.slow)])
def test_a_killed_run_resumes_to_the_bytes_of_an_uninterrupted_one(name, tmp_path):
    env = f"jax:tests.functional_envs:{name}"
    settings = {"total_steps": 512, "max_episode_steps": 7, "checkpoint_every": 64, **QUICK}
    whole = surefoot.train(env, run_dir=tmp_path / "whole", **settings)
    with pytest.raises(KeyboardInterrupt):
        surefoot.train(env, run_dir=tmp_path / "killed", callbacks=[Die(5)], **settings)
    resumed = surefoot.resume(tmp_path / "killed", progress=False, trust=True)
    same(resumed, whole)
    assert "could not" not in (tmp_path / "killed" / "log.txt").read_text()


def test_whole_episodes_and_an_evaluation():
    whole = {name: value for name, value in QUICK.items() if name != "rollout_length"}
    run = surefoot.train(PUSH, "reinforce", total_steps=200, max_episode_steps=5, **whole)
    found = surefoot.evaluate(surefoot.load(run), PUSH, episodes=3, max_episode_steps=5)
    assert found.lengths
    assert max(found.lengths) <= 5


@pytest.mark.parametrize("env", [Changing, Whole])
def test_a_state_that_changes_its_form_is_refused(env):
    with pytest.raises(UsageError, match="another form than reset"):
        JaxVectorEnv(env(), 2)


@pytest.mark.parametrize("more", [{"workers": 2}, {"frame_stack": 2}, {"wrappers": ("FlattenObservation",)}])
def test_settings_that_need_single_envs_are_refused(more):
    with pytest.raises(UsageError, match="JAX steps the envs together"):
        OwnJax().make_many(EnvConfig(env=PUSH, **more), 2, 0, native=True)


def test_a_file_of_the_user_needs_trust_and_a_name_of_brax_does_not():
    assert OwnJax().code(PUSH) == "tests.functional_envs:Push"
    assert Brax().code("brax:ant") == ""


def test_any_vector_env_of_jax_arrays_is_bridged():
    envs = JaxVectorEnv(Push(), 4, max_episode_steps=3)
    ready = ready_envs(envs, 2)
    expected, _ = JaxVectorEnv(Push(), 4).reset(seed=vector_seed(2))
    np.testing.assert_array_equal(ready.reset().numpy(), expected)
    for _ in range(3):
        step = ready.step(torch.zeros(4, 1))
    assert step.truncated.all()
    assert step.final_obs[:, 1].tolist() == [3.0] * 4
    assert step.obs[:, 1].tolist() == [0.0] * 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Brax imports what its authors have given up
class TestBrax:
    @pytest.fixture(autouse=True)
    def brax(self):
        pytest.importorskip("brax", reason="Brax is not installed")

    @pytest.mark.parametrize(("name", "kwargs"), [("fast", {}), ("inverted_pendulum", {"backend": "spring"})])
    def test_it_trains_and_resumes_exactly(self, name, kwargs, tmp_path):
        settings = {"total_steps": 256, "max_episode_steps": 20, "checkpoint_every": 64, **QUICK, "env_kwargs": kwargs}
        settings |= {"eval_episodes": 2}
        whole = surefoot.train(f"brax:{name}", run_dir=tmp_path / "whole", **settings)
        with pytest.raises(KeyboardInterrupt):
            surefoot.train(f"brax:{name}", run_dir=tmp_path / "killed", callbacks=[Die(3)], **settings)
        same(surefoot.resume(tmp_path / "killed", progress=False), whole)

    def test_its_own_wrapper_cuts_episodes(self):
        from brax.envs import get_environment
        from brax.envs.wrappers.training import EpisodeWrapper

        envs = JaxVectorEnv(EpisodeWrapper(get_environment("fast"), 3, 1), 2)
        envs.reset(seed=0)
        found = [envs.step(jax.numpy.zeros((2, 1))) for _ in range(6)]
        assert [bool(step[3].all()) for step in found] == [False, False, True] * 2
        assert not any(step[2].any() for step in found)

    def test_an_unknown_name(self):
        with pytest.raises(UsageError, match="Brax has no env 'horse'"):
            Brax().make_one(EnvConfig(env="brax:horse"))


def test_the_doctor_finds_nothing_wrong():
    report = examine(EnvConfig(env=PUSH, max_episode_steps=20))
    assert [finding.what for finding in report.findings if finding.level == "error"] == []
