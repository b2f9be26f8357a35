"""One run in several processes that torchrun starts: it survives what happens to them."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from surefoot.cli.main import main
from surefoot.cli.ranks import without
from surefoot.engine.group import ALONE
from surefoot.errors import UsageError
from surefoot.runs import RunDirectory
from surefoot.training.config.resolve import resolve
from surefoot.training.life.processes import begun_before, label_of, require_alike

SETTINGS = "--preset none --seed 1 --num-envs 4 --rollout-length 64 --eval-episodes 0 --checkpoint-every 1000"

BREAKS = """import os
import gymnasium as gym

class Breaks(gym.Wrapper):
    steps = 0

    def __init__(self, which):
        super().__init__(gym.make("CartPole-v1"))
        self.breaks = os.environ["RANK"] in which

    def step(self, action):
        Breaks.steps += 1
        if self.breaks and Breaks.steps > 300:
            raise ValueError("it broke")
        return super().step(action)
"""
SLOW = """import os
import time
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class Slow(CartPoleEnv):
    def step(self, action):
        if os.environ["RANK"] == "1":  # the other one waits for it
            time.sleep(float(os.environ.get("PAUSE", "0")))
        return super().step(action)
"""
LONG = 24_000  # steps: still under way when a slow machine gets around to a signal


def environment(**more):
    return {**os.environ, "OMP_NUM_THREADS": "1", "SUREFOOT_RANK_TIMEOUT": "60", **more}


def start(*words, **more):
    command = [sys.executable, "-m", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(**more)
    )


def train(name, *words, env="CartPole-v1", ranks=2, steps=4_000, **more):
    return start("surefoot", "train", env, "--ranks", str(ranks), *SETTINGS.split(), f"--total-steps={steps}",
                 "--run-dir", name, *words, **more)  # fmt: skip


def finished(process, code=0, timeout=400):
    said, _ = process.communicate(timeout=timeout)
    assert process.returncode == code, said
    return said


def until_said(process, pattern):
    """Wait for a line that matches."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return
    raise AssertionError("".join(lines))


def until_trained(process):
    """Wait for the first line about a step."""
    until_said(process, "^step")


def workers(launcher):
    """The processes that it has started, in the order of their ranks. Pids say nothing: they begin again at the end."""
    found = {}
    for children in Path(f"/proc/{launcher.pid}/task").glob("*/children"):
        for pid in map(int, children.read_text(encoding="ascii").split()):
            variables = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8").split("\0")
            found |= {int(text.removeprefix("RANK=")): pid for text in variables if text.startswith("RANK=")}
    return [found[rank] for rank in sorted(found)]


def end_of(name):
    folder = Path(name)
    newest = folder / "checkpoints" / (folder / "checkpoints" / "LATEST").read_text().strip()
    files = ("policy.safetensors", "state.safetensors")
    return (folder / "metrics.jsonl").read_bytes(), [(newest / file).read_bytes() for file in files]


@pytest.mark.slow
class TestLife:
    def test_equal_runs_have_equal_bytes_and_a_killed_one_is_restarted_to_them(self):
        assert "4 envs in 2 processes" in finished(train("one", steps=LONG))
        assert json.loads(Path("one/manifest.json").read_text(encoding="utf-8"))["processes"] == 2
        words = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2", "-m", "surefoot"]
        two = start(*words, "train", "CartPole-v1", *SETTINGS.split(), f"--total-steps={LONG}", "--run-dir", "two")
        until_trained(two)
        os.kill(workers(two)[-1], signal.SIGKILL)
        said = finished(two)
        assert "another process of this run is lost" in said
        assert end_of("two") == end_of("one")
        assert json.loads(Path("two/status.json").read_text(encoding="utf-8"))["state"] == "done"

    def test_a_signal_to_the_launcher_saves_and_any_number_continues(self):
        finished(train("whole", steps=LONG))
        process = train("cut", steps=LONG)
        until_trained(process)
        process.send_signal(signal.SIGTERM)
        said = finished(process, 143)
        assert "everything is saved. To continue:\nsurefoot resume cut --ranks 2" in said
        assert "death signal" not in said  # torchrun's own words
        finished(start("surefoot", "resume", "cut", "--ranks", "2"))
        assert end_of("cut") == end_of("whole")
        said = finished(start("surefoot", "resume", "cut", f"--total-steps={LONG + 2000}"))
        assert "the run began with 2 processes and continues with 1: not exact to the last bit" in said

    def test_the_time_is_up_for_all_and_the_rest_is_trained_later(self):
        Path("slow.py").write_text(SLOW, encoding="utf-8")
        finished(train("whole", env="slow.py:Slow", steps=8_000))
        said = finished(train("cut", "--max-time=2s", env="slow.py:Slow", steps=8_000, PAUSE="0.001"))
        assert "surefoot resume cut --ranks 2" in said
        result = json.loads(Path("cut/result.json").read_text(encoding="utf-8"))
        assert result["stopped"] == "max_time"
        assert 0 < result["total_steps"] < 8_000
        assert result["seconds"] < 20  # a busy machine takes its time
        status = json.loads(Path("cut/status.json").read_text(encoding="utf-8"))
        assert (status["state"], status["step"]) == ("interrupted", result["total_steps"])
        finished(start("surefoot", "resume", "cut", "--ranks=2", "--max-time=1h"))
        assert end_of("cut") == end_of("whole")

    def test_a_killed_launcher_takes_its_processes_with_it_and_they_save(self):
        process = train("alone", steps=100 * LONG)
        until_trained(process)
        process.kill()
        process.communicate(timeout=100)  # returns once nobody can write any more
        assert json.loads(Path("alone/status.json").read_text(encoding="utf-8"))["state"] == "interrupted"

    def test_only_the_first_process_must_see_the_run_that_is_resumed(self):
        finished(train("one"))
        Path("elsewhere").mkdir()
        Path("from_elsewhere.py").write_text(
            "import os, sys\nfrom surefoot.cli.main import main\n\n"
            "if os.environ['RANK'] == '1':\n    os.chdir('elsewhere')\nsys.exit(main(sys.argv[1:]))\n",
            encoding="utf-8",
        )
        words = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "from_elsewhere.py", "resume", "one"]
        finished(start(*words, "--total-steps=8000"))
        assert json.loads(Path("one/result.json").read_text(encoding="utf-8"))["total_steps"] > 7_000

    def test_a_schedulers_warning_to_the_launcher_saves_and_training_goes_on(self):
        process = train("warned", steps=10 * LONG)
        until_trained(process)
        process.send_signal(signal.SIGUSR1)
        until_said(process, "SIGUSR1: the checkpoint of step")
        assert len(workers(process)) == 2
        process.send_signal(signal.SIGTERM)
        finished(process, 143)

    @pytest.mark.parametrize("which", ["0", "1", "01"])
    def test_an_env_that_breaks_ends_all_and_its_error_is_shown_once(self, which):
        Path("broken.py").write_text(BREAKS, encoding="utf-8")
        said = finished(train("broken", "--env-kwargs", json.dumps({"which": which}), env="broken.py:Breaks"), 1)
        assert said.count("raised ValueError: it broke") == 1, said
        assert said.count("Traceback") == said.count("\nValueError: it broke\n") == 1, said
        assert "lost" not in said
        assert "it broke" in json.loads(Path("broken/status.json").read_text(encoding="utf-8"))["error"]
        if which != "01":  # otherwise it depends on who is the first to fail
            assert "what happened is in broken/crash/" in said

    def test_processes_with_other_settings_are_refused_once(self):
        Path("launch.py").write_text(
            "import os, sys\nfrom surefoot.cli.main import main\n"
            "rate = '1e-3' if os.environ['RANK'] == '0' else '2e-3'\n"
            f"sys.exit(main('train CartPole-v1 {SETTINGS} --total-steps 1000 --learning-rate'.split() + [rate]))\n",
            encoding="utf-8",
        )
        words = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "launch.py"]
        said = finished(start(*words), 1)
        assert said.count("learning_rate is 0.001 in process 0 and 0.002 in process 1") == 1

    def test_an_evaluation_during_training_chooses_a_best_and_the_result_is_printed_once(self):
        said = finished(train("chosen", "--eval-every", "1000", "--selection-episodes", "2", "--json"))
        (result,) = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        assert result["best"]["step"] > 0
        assert (Path("chosen") / "checkpoints" / "BEST").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--ranks", "3"], "num_envs=4 cannot be shared equally by 3 processes; try --num-envs 3"),
        (["--ranks", "8"], "num_envs=4 cannot be shared equally by 8 processes; try --num-envs 8"),
        *[
            ([f"--ranks={text}"], f"--ranks '{text}' is not a number of processes; write a whole number from 1 up")
            for text in ("0", "-1", "1.5", "two", "")
        ],
    ],
)
def test_a_number_that_cannot_be_is_refused_at_once(words, says, capsys):
    assert main(["train", "CartPole-v1", *SETTINGS.split(), *words]) == 2
    assert says in capsys.readouterr().err


def test_a_resumed_run_keeps_its_number_of_envs(capsys):
    folder = Path(__file__).parents[1] / "fixtures" / "runs-0.1.0" / "ppo-cartpole"
    assert main(["resume", str(folder), "--ranks", "3"]) == 2
    assert "num_envs=4 cannot be shared equally by 3 processes; try --num-envs 3, or 2 processes" in (
        capsys.readouterr().err
    )


def test_a_sweep_is_not_shared(monkeypatch, capsys):
    assert main(["sweep", "--env", "CartPole-v1", "--ranks", "2"]) == 2
    assert "only train and resume share the envs of a run among processes" in capsys.readouterr().err
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert main(["sweep", "--env", "CartPole-v1"]) == 2
    assert "drop torchrun: a sweep has its own pool" in capsys.readouterr().err


def test_a_process_of_another_version_is_refused():
    class Group:
        size, index = 2, 0

        def gather(self, value):
            return [value, {**value, "the version of surefoot": "0.0.1"}]

    with pytest.raises(UsageError, match=r"but the version of surefoot is \S+ in process 0 and 0.0.1 in process 1"):
        require_alike(Group(), {"seed": 1})


def test_a_process_of_torchrun_starts_no_others(monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    assert main(["train", "CartPole-v1", "--num-envs", "4", "--ranks", "2"]) == 2
    assert "drop --ranks" in capsys.readouterr().err


def test_the_words_for_each_process():
    assert without(["CartPole-v1", "--ranks", "2", "--seed=3"]) == ["CartPole-v1", "--seed=3"]
    assert without(["--ranks=2", "CartPole-v1"]) == ["CartPole-v1"]


class TestRestarts:
    """The run that a restarted process continues."""

    @pytest.fixture
    def config(self, monkeypatch):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-7")
        return resolve("CartPole-v1", "ppo", overrides={"seed": 1})

    def began(self, name, label, state="failed"):
        run = RunDirectory.create(f"runs/{name}", "CartPole-v1", "ppo", 1)
        run.manifest.write_text(json.dumps({"label": label, "created": name}), encoding="utf-8")
        run.set_status(state, step=0)
        run.unlock()
        return run

    def found(self, config):
        run = begun_before(ALONE, label_of(config), None)
        return None if run is None else run.path.name

    def test_the_newest_unfinished_one_of_the_same_job_and_settings(self, config, monkeypatch):
        assert self.found(config) is None
        other = resolve("CartPole-v1", "ppo", overrides={"seed": 2})
        for name, label in (("1", label_of(config)), ("2", label_of(config)), ("3", label_of(other)), ("4", "job-7")):
            self.began(name, label)
        damaged = self.began("5", None)
        damaged.manifest.write_text("{", encoding="utf-8")
        assert self.found(config) == "2"
        assert self.found(other) == "3"
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-8")
        assert self.found(config) is None

    def test_a_finished_one_is_continued_only_by_a_restart(self, config, monkeypatch):
        self.began("1", label_of(config), "done")
        assert self.found(config) is None
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")  # the launch may train another run after this one
        assert self.found(config) == "1"

    def test_a_launch_without_a_name_is_only_known_to_its_launcher(self, config, monkeypatch):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
        self.began("1", label_of(config))
        assert self.found(config) is None
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
        assert self.found(config) == "1"

    def test_without_torchrun_there_is_none(self, config, monkeypatch):
        monkeypatch.delenv("TORCHELASTIC_RUN_ID")
        assert label_of(config) is None
        assert self.found(config) is None
