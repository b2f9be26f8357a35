"""A run from the Python side: files, bytes, callbacks, errors."""

import json
import re

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import surefoot
from surefoot.algorithms import ALGORITHMS
from surefoot.api import evaluate_run
from surefoot.envs.config import EnvConfig
from surefoot.errors import CheckpointError, EnvError, NonFiniteError, UsageError
from surefoot.runs import list_runs
from surefoot.training.config.resolve import resolve
from surefoot.training.config.toml_files import to_toml
from surefoot.training.evaluation.evaluate import env_maker, evaluate_agent
from surefoot.training.trainer import Trainer
from tests.envs_for_learning import Bandit, Constant

QUIET = {"progress": False, "eval_episodes": 5}
SHORT = {**QUIET, "preset": "none", "total_steps": 2048, "num_envs": 4, "rollout_length": 64}


def short_run(algo="ppo", **settings):
    usual = dict(SHORT)
    if algo == "reinforce":
        del usual["rollout_length"]  # it learns from whole episodes
        usual["total_steps"] = 5000
    return surefoot.train("CartPole-v1", algo, **{**usual, **settings})


def test_a_run_leaves_everything_that_it_promises():
    run = short_run(seed=5, log_every=512)
    names = {path.name for path in run.path.iterdir()}
    assert {"config.toml", "manifest.json", "metrics.jsonl", "timings.jsonl", "tensorboard", "checkpoints"} <= names
    result = run.result
    keys = {"run_dir", "algo", "env", "seed", "total_steps", "seconds", "steps_per_second", "engine", "eval"}
    assert keys <= set(result)
    assert {"mean_return", "std_return", "episodes"} <= set(result["eval"])
    assert result["total_steps"] == 2048
    assert [row["step"] for row in run.metrics] == [512, 1024, 1536, 2048]
    assert run.config["seed"] == 5
    manifest = json.loads((run.path / "manifest.json").read_text())
    assert manifest["versions"]["torch"] == torch.__version__
    assert run.directory.read_status()["state"] == "done"


def test_the_written_config_has_a_number_of_minibatches():
    """So that a later version, whose automatic choice may be another, still repeats and resumes the run."""
    assert short_run(eval_episodes=0).config["num_minibatches"] == 4
    envs = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 6)
    ready = {**SHORT, "eval_episodes": 0, "seed": 0}
    del ready["num_envs"]
    assert surefoot.train(envs, "trpo", **ready).config["value_minibatches"] == 6  # of its own six envs


@pytest.mark.sampled(3)
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_same_seed_same_bytes(algo, tmp_path):
    extras = {"normalize_observations": True, "normalize_rewards": True, "seed": 7}
    runs = [short_run(algo, run_dir=tmp_path / name, **extras) for name in ("a", "b")]
    left, right = (run.path for run in runs)
    assert (left / "metrics.jsonl").read_bytes() == (right / "metrics.jsonl").read_bytes()
    weights = [next(path.glob("checkpoints/*/policy.safetensors")).read_bytes() for path in (left, right)]
    assert weights[0] == weights[1]
    other = short_run(algo, run_dir=tmp_path / "c", **{**extras, "seed": 8})
    assert (other.path / "metrics.jsonl").read_bytes() != (left / "metrics.jsonl").read_bytes()


def test_a_loaded_agent_acts_like_the_trained_one():
    agents = []

    class Keep(surefoot.Callback):
        def on_end(self, trainer):
            agents.append(trainer.agent)

    run = short_run(normalize_observations=True, callbacks=[Keep()], seed=1)
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    loaded, kept = surefoot.load(run), agents[0]
    params = [agent.policy.action_params(agent.policy.normalize(torch.from_numpy(obs))) for agent in (loaded, kept)]
    assert torch.equal(*params)
    assert surefoot.load(run.path).predict(obs)[0].tolist() == loaded.predict(obs)[0].tolist()
    found = evaluate_agent(loaded, env_maker(EnvConfig(env="CartPole-v1")), episodes=5, seed=1)
    assert found.mean_return == run.result["eval"]["mean_return"]


def test_callbacks_see_every_point_of_the_loop_and_may_stop_it():
    class Spy(surefoot.Callback):
        def __init__(self):
            self.seen = []

        def on_start(self, trainer):
            self.seen.append("start")

        def on_rollout(self, trainer, rollout):
            self.seen.append("rollout")

        def on_update(self, trainer, metrics):
            self.seen.append("update")
            if trainer.update == 2:
                trainer.stop("seen enough")

        def on_log(self, trainer, row, timing):
            row["mine"] = 42.0
            self.seen.append("log")

        def on_evaluation(self, trainer, evaluation):
            self.seen.append("evaluation")

        def on_end(self, trainer):
            self.seen.append("end")

    spy = Spy()
    run = short_run(callbacks=[spy], log_every=256)
    assert spy.seen == ["start", *["rollout", "update", "log"] * 2, "end", "evaluation"]
    assert run.result["stopped"] == "seen enough"
    assert run.metrics[-1]["mine"] == 42.0


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["native", "torch"])
def test_a_callback_may_set_the_learning_rate_for_good(engine, tmp_path):
    class Warm(surefoot.Callback):
        """Up by 1e-4 with every update, to 1e-3; then it is left alone, and the schedule does not come back."""

        def on_update(self, trainer, metrics):
            if trainer.update < 10:
                trainer.learner.learning_rate = 1e-4 * (trainer.update + 1)

    class Suspend(surefoot.Callback):
        def on_update(self, trainer, metrics):
            if trainer.update == 11:
                trainer.suspend("later")

    how = {"seed": 1, "log_every": 1, "engine": engine, "learning_rate_schedule": "linear", "total_steps": 4096}
    whole = short_run(callbacks=[Warm()], run_dir=tmp_path / "whole", **how)
    rates = [row["learning_rate"] for row in whole.metrics]
    assert rates[1:10] == pytest.approx([1e-4 * (n + 1) for n in range(1, 10)])
    assert rates[10:] == pytest.approx([1e-3] * 6)
    half = short_run(callbacks=[Warm(), Suspend()], run_dir=tmp_path / "half", **how)
    resumed = surefoot.resume(half, progress=False)
    assert resumed.metrics == whole.metrics


def test_callbacks_may_be_named_by_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import surefoot\n"
        "class Stop(surefoot.Callback):\n"
        "    def on_update(self, trainer, metrics):\n"
        "        trainer.stop('told to')\n"
    )
    run = short_run(callbacks=[f"{tmp_path}/mine.py:Stop"])
    assert run.result["stopped"] == "told to"
    assert run.config["callbacks"] == [f"{tmp_path}/mine.py:Stop"]


def test_numbers_of_info_are_logged_by_name():
    settings = {**QUIET, "total_steps": 512, "num_envs": 4, "rollout_length": 32}
    run = surefoot.train(Bandit, log_info=("is_success",), log_every=256, **settings)
    assert 0.0 <= run.metrics[0]["info/is_success"] <= 1.0


def test_a_name_that_no_info_has_is_told_once():
    class Warnings(surefoot.Callback):
        def __init__(self):
            self.said = []

        def on_warning(self, trainer, message):
            self.said.append(message)

    said = Warnings()
    settings = {**QUIET, "total_steps": 512, "num_envs": 4, "rollout_length": 32}
    surefoot.train(Bandit, log_info=("is_succes",), callbacks=[said], **settings)
    (told,) = [message for message in said.said if "log_info" in message]
    assert re.search(r"has 'is_succes'; it has .*is_success; did you mean 'is_success'\?$", told)


def test_a_ready_vector_env_trains_and_says_that_its_seeds_are_not_ours():
    envs = SyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(3)])
    settings = {name: value for name, value in SHORT.items() if name != "num_envs"}
    run = surefoot.train(envs, **{**settings, "rollout_length": 32})
    assert run.config["num_envs"] == 3
    assert run.result["total_steps"] <= 2048
    assert run.result["eval"] is None  # there is no way to make another one
    assert sum(row["episodes"] for row in run.metrics) > 0
    with pytest.raises(UsageError, match="made in Python"):
        evaluate_run(run.directory, episodes=1, seed=None, deterministic=True, max_steps=None)


def test_the_normaliser_sees_every_transition_once_and_no_fake_step():
    counts = []

    class Count(surefoot.Callback):
        def on_end(self, trainer):
            counts.append((trainer.policy.normalizer.count.item(), trainer.step))

    envs = SyncVectorEnv([Constant for _ in range(4)])  # NEXT_STEP: one step in six is fake
    surefoot.train(envs, **{**SHORT, "normalize_observations": True, "callbacks": [Count()]})
    ((seen, steps),) = counts
    assert 0 < steps < 2048
    assert seen == steps


def test_seeds_reach_the_initial_weights():
    config = resolve("CartPole-v1", preset="none", overrides={"num_envs": 2})
    vectors = [Trainer(config, seed).learner.flat.vector for seed in (0, 0, 1)]
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])


def test_evaluation_may_use_another_env():
    run = short_run(eval_env="CartPole-v1", eval_env_kwargs={"sutton_barto_reward": True}, total_steps=1024)
    assert run.result["eval"]["mean_return"] == -1.0  # this variant pays only for the fall
    with pytest.raises(UsageError, match="unknown environment"):
        short_run(eval_env="CartPol-v0")


def test_a_step_budget_is_never_exceeded():
    run = short_run(total_steps=1000)
    assert run.result["total_steps"] == 768  # three rollouts of 256


def test_drawn_seeds_are_written_down():
    run = short_run(total_steps=512)
    assert run.config["seed"] == run.result["seed"]


def test_an_interrupt_saves_the_policy_and_says_where():
    class Interrupt(surefoot.Callback):
        def on_update(self, trainer, metrics):
            if trainer.update == 3:
                raise KeyboardInterrupt

    said = r"at step 768; everything is saved. To continue:\nsurefoot resume runs/"
    with pytest.raises(KeyboardInterrupt, match=said):
        short_run(callbacks=[Interrupt()])
    (run,) = list_runs()
    assert run.read_status() == {"state": "interrupted", "step": 768}
    assert surefoot.load(run.path).predict(np.zeros(4))[0] in (0, 1)


def test_an_env_that_breaks_is_named_and_the_run_is_marked_failed(tmp_path):
    class Breaks(Constant):
        def step(self, action):
            if self.t == 3:
                raise ValueError("gear jammed")
            return super().step(action)

    with pytest.raises(
        EnvError, match=r"step of Breaks \(env 0, seed \d+, episode 0, step 4\) raised ValueError: gear"
    ):
        surefoot.train(Breaks, **{**SHORT, "run_dir": tmp_path / "r"})
    status = json.loads((tmp_path / "r" / "status.json").read_text())
    assert status["state"] == "failed"
    assert "gear jammed" in status["error"]


def test_a_nan_observation_stops_the_run_naming_the_env():
    class Poisoned(Constant):
        def step(self, action):
            obs, *rest = super().step(action)
            return (obs * np.nan if self.t == 2 else obs, *rest)

    with pytest.raises(NonFiniteError, match=r"observation of Poisoned \(env 0, .*step 2\) is not finite"):
        surefoot.train(Poisoned, **SHORT)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(5), "Text, which has no fixed size"),
        (spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}), "'a' of the observation space is a Sequence"),
        (spaces.Box(0, 1, (0,), np.float32), "empty"),
    ],
)
def test_unsupported_observations_are_refused_before_any_step(space, message):
    class Odd(Constant):
        observation_space = space
        action_space = spaces.Box(-1.0, 1.0, (1,))

    with pytest.raises(UsageError, match=message):
        surefoot.train(Odd, **SHORT)


def test_unsupported_actions_are_refused_before_any_step():
    class Odd(Constant):
        action_space = spaces.Text(3)

    with pytest.raises(UsageError, match="Text"):
        surefoot.train(Odd, **SHORT)


def test_settings_for_continuous_actions_are_refused_on_a_discrete_env():
    with pytest.raises(UsageError, match=r"tanh_mean is for continuous actions, but CartPole-v1 has Discrete\(2\)"):
        short_run(tanh_mean=True)


@pytest.mark.parametrize(
    "space", [spaces.MultiDiscrete([2, 3]), spaces.Dict({"a": spaces.Discrete(2), "b": spaces.MultiBinary(3)})], ids=str
)
def test_and_where_several_choices_are_made_at_once(space):
    class Choices(Constant):
        action_space = space

    with pytest.raises(UsageError, match="log_std_init is for continuous actions, but Choices has"):
        surefoot.train(Choices, log_std_init=-1.0, **SHORT)


def test_reinforce_needs_a_time_limit():
    with pytest.raises(UsageError, match="set --max-episode-steps"):
        surefoot.train(Constant, "reinforce", **QUIET)


def test_a_rollout_that_cannot_fit_in_memory_is_refused():
    with pytest.raises(UsageError, match="GiB"):
        short_run(rollout_length=10**10, total_steps=10**12)


def test_odd_run_directories_work(tmp_path):
    path = tmp_path / "mit Leerzeichen – и юникод"
    assert short_run(run_dir=path, total_steps=512).path == path
    with pytest.raises(UsageError, match="already holds a run"):
        short_run(run_dir=path)


def test_a_damaged_checkpoint_is_an_error_not_a_crash():
    run = short_run(total_steps=1024, checkpoint_every=256)
    *_, newest = sorted(run.path.glob("checkpoints/*/policy.safetensors"), key=lambda p: int(p.parent.name))
    newest.write_bytes(b"not tensors")
    surefoot.load(run)  # the one before it serves
    for file in run.path.glob("checkpoints/*/policy.safetensors"):
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match="this run has no intact checkpoint"):
        surefoot.load(run)


def test_an_env_itself_is_refused_because_it_cannot_be_copied():
    env = gym.make("CartPole-v1")
    with pytest.raises(UsageError, match="pass a function that makes the env"):
        surefoot.train(env, **SHORT)
    with pytest.raises(UsageError, match="pass a function that makes the env"):
        surefoot.evaluate(surefoot.load(short_run(total_steps=512)), env)
    with pytest.raises(UsageError, match="list is not an env; pass an id, a function"):
        surefoot.train([env], **SHORT)
    env.num_envs = 2
    with pytest.raises(UsageError, match=r"steps several envs, but is not a .*VectorEnv.*LabVectorEnv"):
        surefoot.train(env, **SHORT)
    with pytest.raises(UsageError, match="same env twice"):
        surefoot.train(lambda: env, **SHORT)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_envs": 2}, "num_envs=2, but the vector env has 3"),
        ({"wrappers": ["TimeLimit"]}, "wrappers cannot be applied to a ready-made vector env"),
        ({"frame_stack": 2}, "frame_stack cannot be applied to a ready-made vector env"),
        ({"max_episode_steps": 9}, "max_episode_steps cannot be applied to a ready-made vector env"),
    ],
)
def test_settings_that_a_ready_vector_env_cannot_follow_are_refused(settings, message):
    envs = SyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(3)])
    with pytest.raises(UsageError, match=message):
        surefoot.train(envs, **settings)


def test_an_eval_env_of_other_spaces_is_refused_before_training():
    with pytest.raises(UsageError, match="eval_env=Pendulum-v1 has"):
        short_run(eval_env="Pendulum-v1")


def test_env_kwargs_that_toml_cannot_hold_are_written_all_the_same():
    run = short_run(total_steps=512, env_kwargs={"render_mode": None})
    assert json.loads(run.config["env_kwargs"]) == {"render_mode": None}
    with pytest.raises(UsageError, match="cannot be saved"):
        to_toml(resolve("CartPole-v1", overrides={"env_kwargs": {"render_mode": object()}}))


def test_a_run_that_fails_keeps_its_policy():
    class Breaks(surefoot.Callback):
        def on_rollout(self, trainer, rollout):
            if trainer.update == 3:
                raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        short_run(callbacks=[Breaks()], checkpoint_every=10**6)
    (run,) = list_runs()
    assert run.read_status()["state"] == "failed"
    assert surefoot.load(run.path).predict(np.zeros(4))[0] in (0, 1)


def test_a_full_disk_while_rescuing_does_not_hide_the_error(monkeypatch):
    class Breaks(surefoot.Callback):
        def on_rollout(self, trainer, rollout):
            if trainer.update == 3:
                raise RuntimeError("mine")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("surefoot.training.loop.writing.write_checkpoint", full)
    with pytest.raises(RuntimeError, match="mine"):
        short_run(callbacks=[Breaks()])
    (run,) = list_runs()
    assert "checkpoint of step 768 could not be written" in run.log.read_text()
    assert run.read_status()["state"] == "failed"


def test_a_callback_that_raises_at_the_end_leaves_nothing_open():
    closed = []

    class Env(Constant):
        def close(self):
            closed.append(self)

    class Breaks(surefoot.Callback):
        def on_end(self, trainer):
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        surefoot.train(Env, **{**SHORT, "callbacks": [Breaks()]})
    assert len(closed) == 4


def test_rows_hold_numbers_and_null_for_what_is_not_finite():
    class Adds(surefoot.Callback):
        def on_log(self, trainer, row, timing):
            row["mine"], row["broken"] = np.float32(1.5), float("nan")

    row = short_run(total_steps=512, callbacks=[Adds()]).metrics[-1]
    assert (row["mine"], row["broken"]) == (1.5, None)


def test_stochastic_evaluation_repeats():
    agent = surefoot.load(short_run(total_steps=512))
    found = [surefoot.evaluate(agent, "CartPole-v1", episodes=5, deterministic=False).returns for _ in range(2)]
    assert found[0] == found[1]


def test_training_leaves_torchs_threads_and_generator_alone():
    torch.manual_seed(0)
    before = (torch.get_num_threads(), torch.get_rng_state().tolist())
    short_run(total_steps=512, threads=2)
    assert (torch.get_num_threads(), torch.get_rng_state().tolist()) == before


def test_tensorboard_reads_the_curves():
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = short_run(log_every=512)
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    assert {"episode_return", "kl", "entropy", "explained_variance"} <= set(events.Tags()["scalars"])
    assert [e.step for e in events.Scalars("kl")] == [512, 1024, 1536, 2048]


def test_schedules_and_adaptive_rates_reach_the_optimizer():
    linear = short_run(learning_rate=1e-3, learning_rate_schedule="linear", log_every=256).metrics
    assert [row["learning_rate"] for row in linear[:3]] == pytest.approx([1e-3, 1e-3 * 7 / 8, 1e-3 * 6 / 8])
    adaptive = short_run(learning_rate=1e-3, adaptive_kl=1e-9, log_every=256).metrics
    assert [row["learning_rate"] for row in adaptive[:3]] == pytest.approx([1e-3, 1e-3 / 1.5, 1e-3 / 1.5**2])
