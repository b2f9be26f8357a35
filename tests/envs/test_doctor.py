"""What the doctor finds in environments with one known fault each."""

import json
import os
import signal
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from surefoot.cli.doctor import describe, run
from surefoot.doctor import examine, speed
from surefoot.doctor.case import Case
from surefoot.doctor.play import play
from surefoot.envs.config import EnvConfig
from surefoot.errors import UsageError
from tests.helpers import BadEnv, NoiseEnv, ScriptedEnv


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(speed, "SPEED_SECONDS", 0.01)


class Still(ScriptedEnv):
    """Three steps of a small bounded observation, for faults to be added to."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.observation_space = spaces.Box(-1, 4, (2,), np.float32)

    def observation(self):
        return np.array([0.5, self.time], np.float32)


class Endless(Still):
    def __init__(self):
        super().__init__(rewards=(1.0,))

    def observation(self):
        return np.zeros(2, np.float32)

    def step(self, action):
        return self.observation(), 1.0, False, False, {}


class Unseeded(Still):
    noise = np.random.default_rng(3)

    def observation(self):
        return self.noise.uniform(size=2).astype(np.float32)


class Remembering(Still):
    """Deterministic when new, but a reset does not forget the episodes before it."""

    def observation(self):
        return np.array([min(self.episode, 3), 0], np.float32)


class Outside(Still):
    def observation(self):
        return np.array([0.5, self.time * 3], np.float32)


class OutsideDiscrete(Still):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Discrete(3)

    def observation(self):
        return self.time


class Masked(Still):
    def __init__(self, mask=(1, 0, 1)):
        super().__init__(action_space=spaces.Discrete(3))
        self.mask = mask

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return obs, info | {"action_mask": np.array(self.mask, np.int8)}

    def step(self, action):
        assert self.mask[action] or not all(self.mask[::2]), "an illegal action"
        *rest, info = super().step(action)
        return *rest, info | {"action_mask": np.array(self.mask, np.int8)}


class Nested(Still):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Dict(
            {"arm": spaces.Dict({"angle": spaces.Box(-100, 100, (2,), np.float32)}), "mode": spaces.Discrete(4)}
        )

    def observation(self):
        return {"arm": {"angle": np.array([50.0, self.time], np.float32)}, "mode": self.time}


class Texts(Still):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Text(8)

    def observation(self):
        return "abc"


def findings(make, level=None, **settings):
    """(report, all findings of a level as one text)."""
    report = examine(EnvConfig(env="x", **settings), factory=make)
    text = "\n".join(f"{f.what} -> {f.advice}" for f in report.findings if level in (None, f.level))
    assert "recommended" in "\n".join(describe(report)) or not report.ok
    json.dumps(report.as_dict(), allow_nan=False)
    return report, text


def test_a_clean_env_ends_with_a_recommendation(capsys):
    begun = time.process_time()
    assert run(["CartPole-v1"]) == 0
    assert time.process_time() - begun < 5
    out = capsys.readouterr().out
    assert "error" not in out
    assert "warning" not in out
    assert "exact resume: yes" in out
    assert "rgb_array is declared" in out
    assert "steps/s, 16 in turn" in out
    assert out.splitlines()[-1].startswith("recommended: surefoot train CartPole-v1   (with the preset")


def test_json_is_all_of_stdout_and_the_text_goes_to_stderr(capsys):
    assert run(["FrozenLake-v1", "--env-kwargs", '{"is_slippery": false}', "--episodes", "5", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert captured.out.count("\n") == 1
    assert "recommended: surefoot train" in captured.err
    assert found["ok"] is True
    assert found["numbers"]["episodes"]["ended"] == 5
    assert found["recommended"] == (
        """surefoot train FrozenLake-v1 --env-kwargs '{"is_slippery": false}' --num-envs """
        + found["flags"][0].removeprefix("--num-envs ")
    )


@pytest.mark.slow
def test_what_it_recommends_can_be_typed(capsys):
    from surefoot.cli.main import main

    run(["Blackjack-v1", "--max-episode-steps", "20", "--json"])
    words = json.loads(capsys.readouterr().out)["recommended"].split()
    assert main([*words[1:], "--dry-run"]) == 0


def test_the_same_env_gets_the_same_report():
    one, other = (examine(EnvConfig(env="Acrobot-v1"), episodes=3).as_dict() for _ in range(2))
    for report in (one, other):
        for key in ("steps_per_second", "steps_per_second_together", "workers"):
            report["numbers"].pop(key, None)  # workers: only if the machine is so slow that they may pay
        report["flags"] = report["recommended"] = None
    assert one == other


def test_a_name_that_does_not_exist_is_a_usage_error():
    with pytest.raises(UsageError, match="did you mean 'CartPole-v1'"):
        run(["CartPol-v1"])
    with pytest.raises(UsageError, match="episodes must be at least 1"):
        run(["CartPole-v1", "--episodes", "0"])


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("nan_obs", "the observation is not finite: NaN or inf"),
        ("inf_obs", "the observation is not finite"),
        ("wrong_shape", "has the shape (3,); its space says (2,)"),
        ("scalar_obs", "has the shape (); its space says (2,)"),
        ("wrong_dtype", "is of complex128; its space says float32"),
        ("nan_reward", "the reward is nan (seed"),
        ("four_values", "step returned 4 values; it must return five"),
    ],
)
def test_faults_of_a_step(fault, words):
    report, errors = findings(lambda: BadEnv(fault), "error")
    assert not report.ok
    assert words in errors
    assert "steps_per_second" not in report.numbers


def test_an_env_that_raises_is_named_once_with_the_users_line():
    report, errors = findings(lambda: BadEnv("raise"), "error")
    assert errors.count("ZeroDivisionError: the simulator broke") == 1
    assert "random play, determinism: " in errors
    assert "helpers.py:" in errors
    assert 'raise ZeroDivisionError("the simulator broke")' in errors
    assert "exact_resume" not in report.numbers
    assert any("rgb_array" in finding.what for finding in report.findings)  # the other checks went on


def test_an_env_whose_constructor_raises():
    def broken():
        raise RuntimeError("no licence")

    report, errors = findings(broken, "error")
    assert "making the env: RuntimeError: no licence" in errors
    assert "in broken" in errors
    assert not report.ok


@pytest.mark.parametrize("returned", [None, np.zeros(2, np.float32), (np.zeros(2, np.float32), None)])
def test_a_reset_without_info(returned):
    class Old(Still):
        def reset(self, **kwargs):
            super().reset(**kwargs)
            return returned

    assert "it must return two: (observation, info)" in findings(Old, "error")[1]


def test_an_env_that_is_not_deterministic():
    report, warned = findings(Unseeded, "warning")
    assert "not deterministic: two fresh envs with the same seed and actions differ at the reset" in warned
    assert "draw only from self.np_random" in warned
    assert "exact resume: no" in warned
    assert report.ok
    assert findings(NoiseEnv)[0].numbers["exact_resume"] is True


def test_an_env_that_remembers_earlier_episodes_cannot_be_resumed_exactly():
    report, warned = findings(Remembering, "warning")
    assert report.numbers["deterministic"] is True
    assert report.numbers["exact_resume"] is False
    assert "exact resume: no" in warned
    assert "not deterministic" not in warned


def test_an_env_that_never_ends():
    report, warned = findings(Endless, "warning")
    assert "no time limit, and an episode did not end in 10,000 random steps" in warned
    assert "--max-episode-steps 1000" in report.recommended
    report, warned = findings(Endless, "warning", max_episode_steps=50)
    assert "no time limit" not in warned
    assert report.numbers["episodes"] == {"ended": 20, "terminated": 0, "truncated": 20}


@pytest.mark.slow
def test_a_slow_env_keeps_to_the_time_budget(monkeypatch):
    class Slow(Endless):
        def step(self, action):
            time.sleep(0.01)
            return super().step(action)

    monkeypatch.setattr("surefoot.doctor.play.PLAY_SECONDS", 0.2)
    monkeypatch.setattr("surefoot.doctor.replay.REPLAY_SECONDS", 0.1)
    begun = time.monotonic()
    assert "an episode did not end in" in findings(Slow, "warning")[1]
    assert time.monotonic() - begun < 60  # twenty episodes would take half an hour


def test_observations_outside_their_space():
    report, warned = findings(Outside, "warning")
    assert "the observation leaves its space: number 1 was in [0, 9], but [-1, 4] is declared" in warned
    assert report.ok
    report, errors = findings(OutsideDiscrete, "error")
    assert "was in [0, 3], but [0, 2] is declared" in errors  # a network has no input for it
    assert not report.ok


def test_large_rewards():
    report, warned = findings(lambda: Still(rewards=(0.0, 500.0, -3.0)), "warning")
    assert "rewards are large: |reward| up to 500 -> --normalize-rewards, or --reward-scale 0.001" in warned
    assert "--normalize-rewards" in report.flags
    assert report.numbers["reward"]["nonzero"] == pytest.approx(2 / 3)


def test_no_rewards():
    assert "no reward in 60 random steps" in findings(lambda: Still(rewards=(0.0,) * 3), "warning")[1]


def test_observations_of_a_bad_scale():
    report, text = findings(ScriptedEnv, "warning")
    assert "|x| up to 19" in text
    assert "--normalize-observations" in report.flags


@pytest.mark.parametrize(("steps_per_second", "num_envs"), [(500, 4), (6_000, 8), (20_000, 16), (10**6, 16)])
def test_fast_envs_are_stepped_together_in_greater_numbers(monkeypatch, steps_per_second, num_envs):
    monkeypatch.setattr(speed, "_speed_of", lambda case, count: float(steps_per_second))
    assert findings(Still)[0].flags == [f"--num-envs {num_envs}"]
    assert [flag.split()[0] for flag in findings(Still)[0].flags] == ["--num-envs"]


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ([200] * 20, "all 20 episodes ended at step 200, terminated, never truncated"),
        ([200] * 15 + [40, 60, 80, 100, 120], "15 of 20 episodes ended at step 200"),
        ([200] * 5 + list(range(40, 190, 10)), ""),  # some of them, by chance
        ([5] * 20, ""),  # a hand of cards
        ([200, 200], ""),  # too few to say
    ],
)
def test_a_time_limit_that_is_reported_as_termination(lengths, words):
    class Clocked(Still):
        played = 0

        def reset(self, **kwargs):
            found = super().reset(**kwargs)
            self.length = lengths[Clocked.played % len(lengths)]
            Clocked.played += 1
            return found

        def observation(self):
            return np.array([0.5, self.time / 100], np.float32)

        def step(self, action):
            self.time += 1
            return self.observation(), 1.0, self.time >= self.length, False, {}

    case = Case(EnvConfig(env="x"), Clocked)
    case.look()
    play(case, len(lengths))
    found = [finding for finding in case.report.findings if "looks like a time limit" in finding.what]
    assert bool(words) == bool(found)
    if words:
        assert words in found[0].what
        assert found[0].level == "warning"
        assert "truncated=True there (or leave it to --max-episode-steps 200)" in found[0].advice


def test_a_grid_of_symbols_that_is_declared_as_a_picture():
    class Grid(Still):
        largest = 10

        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Box(0, 255, (7, 7, 3), np.uint8)

        def observation(self):
            return np.full((7, 7, 3), self.largest, np.uint8)

    words = (
        "declared as an image of 0 to 255 and divided by 255, but was at most 10 -> declare the true bounds: Box(0, 10"
    )
    assert words in findings(Grid, "warning")[1]
    Grid.largest = 200
    assert "divided by 255" not in findings(Grid)[1]


def test_a_space_that_is_not_supported_is_said_once():
    class Graphs(Still):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Graph(spaces.Box(0, 1, (2,)), None)

        def observation(self):
            return self.observation_space.sample()

    report, text = findings(Graphs, "error")
    assert [finding.level for finding in report.findings].count("error") == 1
    assert "the space is a Graph, which has no fixed size" in text


def test_a_time_limit_that_is_reported_as_such_is_fine():
    assert "looks like a time limit" not in findings(lambda: gym.make("MountainCar-v0"))[1]


def test_action_masks_are_found_and_kept_to():
    report, text = findings(Masked)
    assert "action masks: from info['action_mask'], 3 entries" in text
    assert report.ok, text


def test_action_masks_of_the_wrong_form():
    report, errors = findings(lambda: Masked((1, 1, 0, 0)), "error")
    assert "the action mask is not valid: the action mask has 4 entries; 3 choices are expected" in errors
    assert not report.ok
    assert "leaves no legal action" in findings(lambda: Masked((0, 0, 0)), "error")[1]


def test_a_dict_is_shown_leaf_by_leaf():
    report, text = findings(Nested)
    assert report.observation == [
        "arm/angle: vector (2,) float32 in [-100, 100]",
        "mode: discrete () int64 of 4 choices",
    ]
    assert "observation 'arm/angle' is badly scaled for a network: |x| up to 50" in text
    assert report.ok, text


def test_an_unsupported_space(tmp_path, capsys):
    errors = findings(Texts, "error")[1]
    assert "the observation space is not supported: the space is a Text" in errors
    file = tmp_path / "texts.py"
    file.write_text("from tests.envs.test_doctor import Texts\n")
    assert run([f"{file}:Texts"]) == 1
    out = capsys.readouterr().out
    assert "✗ error: the observation space is not supported" in out
    assert "1 error to fix first" in out


def test_gymnasiums_warnings_are_findings_and_no_output(recwarn):
    class Odd(Still):
        def step(self, action):
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, reward, int(terminated), truncated, info

    text = findings(Odd, "warning")[1]
    assert "terminated is 0 (int); it must be a bool" in text
    assert "Python or Gymnasium warns: Expects `terminated` signal to be a boolean" in text
    assert not recwarn.list


def test_an_env_shared_by_all_is_an_error_of_the_speed_check():
    env = gym.make("CartPole-v1")
    assert "speed: the function that makes the env returned the same env twice" in findings(lambda: env, "error")[1]


@pytest.mark.slow
def test_slow_envs_by_name_are_measured_in_workers(monkeypatch):
    monkeypatch.setattr("surefoot.envs.workers.auto.SECONDS", 0.3)
    monkeypatch.setattr("surefoot.envs.workers.auto.usable_cores", lambda: 2)
    file = os.path.join(os.path.dirname(os.path.dirname(__file__)), "worker_envs.py")
    report = examine(EnvConfig(env=f"{file}:Slow", env_kwargs={"how": 0.01}), episodes=2)
    assert report.flags[:2] == ["--num-envs 4", "--normalize-observations"]
    assert "--workers 2" in report.flags
    assert any("  workers                2 (" in line for line in describe(report))


def test_control_c_leaves_at_once(tmp_path):
    file = tmp_path / "slow.py"
    file.write_text(
        "import time\n"
        "from tests.envs.test_doctor import Endless\n"
        "class Slow(Endless):\n"
        "    def step(self, action):\n"
        "        print('stepping', flush=True)\n"
        "        time.sleep(0.2)\n"
        "        return super().step(action)\n"
    )
    code = (  # a shell's background jobs begin with SIGINT ignored
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        f"from surefoot.cli.main import main; sys.exit(main(['doctor', {f'{file}:Slow'!r}]))"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "stepping\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip() == "surefoot: interrupted"


class Blind(gym.Env):
    """Its author forgot to fill the observation."""

    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        return np.zeros(4, np.float32), float(action), bool(self.np_random.random() < 0.1), False, {}


def test_an_observation_that_never_changes_is_a_warning():
    _, said = findings(Blind, "warning")
    assert "4 of 4 numbers never changed under random actions -> check what reset() and step() return" in said
