"""Trackers mirror a run and cannot harm it: fakes that fail in every way, and the real ones where installed."""

import json
import os
import subprocess
import sys
import threading
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import surefoot
from surefoot.errors import UsageError
from surefoot.runs import RunDirectory
from surefoot.training import trackers
from surefoot.training.trackers import TRACKERS, TrackerLog, require_tracker

SHORT = {"preset": "none", "total_steps": 512, "num_envs": 4, "rollout_length": 32, "num_minibatches": 4}
SHORT |= {"log_every": 128, "seed": 3, "eval_episodes": 2, "progress": False}


class Fake:
    """What either package was asked to do. `at`: the call that breaks, `how`: what it does then."""

    def __init__(self, at=None, how=None):
        self.at, self.how = at, how
        self.opened, self.rows, self.final, self.config, self.ends = [], [], {}, {}, []

    def call(self, point):
        if point == self.at:
            self.how()


def fake_wandb(fake):
    class Run:
        def __init__(self, run_id):
            self.id, self.summary = run_id, fake.final

        def log(self, row, step, commit):
            fake.call("log")
            fake.rows.append((step, row))

        def finish(self, exit_code):
            fake.call("finish")
            fake.ends.append({0: "finished", 1: "failed", 255: "killed"}[exit_code])

    def init(*, config, settings, project, name, dir, id, resume):
        fake.call("init")
        assert (resume, settings.silent, settings.console) == ("allow", True, "off")
        fake.opened.append({"project": project, "name": name, "dir": dir, "id": id})
        fake.config = config
        return Run(id or "new-id")

    def setup(settings):
        assert settings.silent
        sys.excepthook = sys.exit = lambda *_: pytest.fail("wandb's own hook is still there")

    return {"wandb": {"init": init, "setup": setup, "termsetup": lambda *_: None, "Settings": SimpleNamespace}}


def fake_mlflow(fake):
    class Client:
        def get_experiment_by_name(self, name):
            fake.call("init")
            return SimpleNamespace(experiment_id=name) if fake.opened else None

        def create_experiment(self, name):
            return name

        def create_run(self, experiment, run_name):
            fake.opened.append({"project": experiment, "name": run_name, "id": None})
            return SimpleNamespace(info=SimpleNamespace(run_id="new-id"))

        def update_run(self, run_id, status):
            assert status == "RUNNING"
            fake.opened.append({"id": run_id})

        def log_batch(self, run_id, metrics=(), params=()):
            assert len(metrics) <= 1000
            fake.config |= dict(params)
            if metrics:
                fake.call("log")
            for key, value, _, step in metrics:
                if key.startswith("final_"):
                    fake.final[key] = value
                else:
                    if not fake.rows or fake.rows[-1][0] != step:
                        fake.rows.append((step, {}))
                    fake.rows[-1][1][key] = value

        def set_terminated(self, run_id, status):
            fake.call("finish")
            fake.ends.append(status.lower())

    entities = {"Metric": lambda *parts: parts, "Param": lambda *parts: parts}
    return {"mlflow": {"MlflowClient": Client}, "mlflow.entities": entities}


@pytest.fixture
def install(monkeypatch):
    """install(name, fake): from now on `import name` gives the fake package. What it changes is changed back."""
    for variable in ("WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME", *(v for t in TRACKERS.values() for v in t.environment)):
        monkeypatch.setenv(variable, "")  # remembers what there is to restore
        monkeypatch.delenv(variable)
    monkeypatch.setattr(sys, "exit", sys.exit)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)

    def put(name, fake):
        for package, content in {"wandb": fake_wandb, "mlflow": fake_mlflow}[name](fake).items():
            module = ModuleType(package)
            module.__spec__ = ModuleSpec(package, None, origin="fake")
            module.__dict__.update(content)
            monkeypatch.setitem(sys.modules, package, module)
        return fake

    return put


def tracked(name, *callbacks, run_dir="runs/mine", **settings):
    """(a run with a tracker, what it warned of)"""
    warnings = []
    log = TrackerLog(name, RunDirectory(Path(run_dir)), warnings.append)
    run = surefoot.train("CartPole-v1", run_dir=run_dir, callbacks=[log, *callbacks], **{**SHORT, **settings})
    return run, warnings


def fail(error):
    def how():
        raise error

    return how


both = pytest.mark.parametrize("name", TRACKERS)


@both
def test_rows_settings_and_the_final_evaluation_arrive(name, install):
    fake = install(name, Fake())
    hooks = sys.exit, sys.excepthook
    run, warnings = tracked(name, eval_every=256)
    assert warnings == []
    assert (sys.exit, sys.excepthook) == hooks
    assert os.environ[{"wandb": "WANDB_ERROR_REPORTING", "mlflow": "MLFLOW_DISABLE_TELEMETRY"}[name]]
    assert [opened["project"] for opened in fake.opened] == ["surefoot"]
    assert fake.opened[0]["name"] == "mine"
    assert str(fake.config["learning_rate"]) == str(run.config["learning_rate"])
    assert [step for step, _ in fake.rows] == [row["step"] for row in run.metrics] == [128, 256, 384, 512]
    for (_, sent), written in zip(fake.rows, run.metrics, strict=True):
        assert sent.pop("steps_per_second") > 0
        assert sent == {key: value for key, value in written.items() if value is not None and key != "step"}
    assert fake.final["final_eval_mean_return"] == run.result["eval"]["mean_return"]
    assert fake.ends == ["finished"]


@both
def test_the_tools_own_variables_name_the_project(name, install, monkeypatch):
    fake = install(name, Fake())
    for variable in ("WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.setenv(variable, "theirs")
    tracked(name, run_dir="elsewhere/deep/run")
    assert fake.opened[0]["project"] == "theirs"
    assert fake.opened[0]["name"] == "run"


@both
@pytest.mark.parametrize("error", [ValueError("first line\nlast line"), SystemExit("last line")], ids=["error", "exit"])
@pytest.mark.parametrize("at", ["init", "log", "finish"])
def test_a_broken_tracker_costs_one_warning_and_changes_no_byte(name, at, error, install):
    plain = surefoot.train("CartPole-v1", run_dir="plain", **SHORT)
    install(name, Fake(at, fail(error)))
    run, (warning,) = tracked(name)
    assert warning.startswith(f"{name}: ")
    assert "last line; the run goes on without it" in warning
    assert run.directory.metrics.read_bytes() == plain.directory.metrics.read_bytes()
    assert run.directory.read_status()["state"] == "done"


@both
def test_a_package_that_cannot_even_be_imported(name, install, monkeypatch):
    install(name, Fake())

    def broken(name):
        raise ImportError("libcuda.so.42 is missing")

    monkeypatch.setattr(trackers, "import_module", broken)
    _, (warning,) = tracked(name)
    assert "libcuda.so.42" in warning


@both
@pytest.mark.parametrize("at", ["init", "log", "finish"])
def test_a_tracker_that_hangs_for_ever_is_left_alone(name, at, install, monkeypatch):
    let_go = threading.Event()
    install(name, Fake(at, let_go.wait))
    monkeypatch.setattr(trackers, "END_SECONDS", 0.2)
    start = time.monotonic()
    try:
        run, (warning,) = tracked(name)
        assert time.monotonic() - start < 8
        assert "not done 0.2 s after the run" in warning
        assert run.directory.read_status()["state"] == "done"
    finally:
        let_go.set()


def test_rows_for_a_tracker_that_is_too_slow_are_dropped_and_counted(install, monkeypatch):
    let_go = threading.Event()
    fake = install("wandb", Fake("init", let_go.wait))
    monkeypatch.setattr(trackers, "QUEUE_ROWS", 2)

    class Release(surefoot.Callback):
        def on_log(self, trainer, row, timing):
            if row["step"] == 512:
                let_go.set()

    _, (warning,) = tracked("wandb", Release(), eval_episodes=0)
    assert "too slow for 2 rows" in warning
    assert [step for step, _ in fake.rows] == [128, 256]
    assert fake.ends == ["finished"]


@both
def test_a_resumed_run_goes_on_in_the_same_tracker_run(name, install):
    fake = install(name, Fake())
    run, _ = tracked(name)
    assert json.loads((run.path / "trackers.json").read_text()) == {name: "new-id"}
    warnings = []
    log = TrackerLog(name, RunDirectory(run.path), warnings.append)
    surefoot.resume(run, total_steps=768, callbacks=[log], progress=False)
    assert [opened["id"] for opened in fake.opened] == [None, "new-id"]
    assert [step for step, _ in fake.rows] == [128, 256, 384, 512, 640, 768]
    assert (warnings, fake.ends) == ([], ["finished", "finished"])


def test_two_trackers_share_the_file_of_ids(install):
    for name in TRACKERS:
        install(name, Fake())
    run = surefoot.train("CartPole-v1", run_dir="mine", trackers=tuple(TRACKERS), **SHORT)
    assert json.loads((run.path / "trackers.json").read_text()) == {"wandb": "new-id", "mlflow": "new-id"}


def test_a_damaged_file_of_ids_means_a_new_tracker_run(install):
    fake = install("wandb", Fake())
    for text in ("{", "[]"):
        Path("runs/mine").mkdir(parents=True, exist_ok=True)
        Path("runs/mine/trackers.json").write_text(text)
        assert trackers.read_ids(RunDirectory(Path("runs/mine"))) == {}
    run, warnings = tracked("wandb")
    assert (fake.opened[0]["id"], warnings) == (None, [])
    assert json.loads((run.path / "trackers.json").read_text()) == {"wandb": "new-id"}


def test_an_id_that_cannot_be_kept_is_only_a_warning(install, monkeypatch):
    fake = install("wandb", Fake())
    monkeypatch.setattr(trackers, "write_json", lambda *_: fail(OSError(28, "No space left on device"))())
    _, (warning,) = tracked("wandb")
    assert "No space left" in warning
    assert len(fake.rows) == 4


class Act(surefoot.Callback):
    def __init__(self, act):
        self.on_update = act


@both
def test_a_run_that_fails_or_is_interrupted_is_marked_so(name, install):
    fake = install(name, Fake())
    with pytest.raises(ZeroDivisionError):
        tracked(name, Act(lambda trainer, metrics: 1 / 0))
    tracked(name, Act(lambda trainer, metrics: trainer.suspend("enough")), run_dir="runs/suspended")
    tracked(name, Act(lambda trainer, metrics: trainer.stop("enough")), run_dir="runs/stopped")
    assert fake.ends == ["failed", "killed", "finished"]


def test_training_inside_an_error_handler_is_no_failure(install):
    fake = install("wandb", Fake())
    try:
        raise RuntimeError
    except RuntimeError:
        tracked("wandb")
    assert fake.ends == ["finished"]


def test_without_the_evaluation_that_was_to_come_the_tracker_run_ends_with_the_process(install, monkeypatch):
    fake = install("mlflow", Fake())
    at_exit = []
    monkeypatch.setattr(trackers.atexit, "register", lambda function, *args: at_exit.append((function, args)))
    monkeypatch.setattr("surefoot.training.session.evaluate_agent", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tracked("mlflow")
    assert fake.ends == []
    ((function, arguments),) = [found for found in at_exit if found[0].__self__.__class__ is TrackerLog]
    function(*arguments)
    assert fake.ends == ["failed"]


def test_what_is_no_number_is_left_out_and_long_settings_are_cut(install):
    values = {"step": 5, "a": None, "b": float("nan"), "c": 1.5, "d": 2}
    assert trackers.numbers(values) == {"c": 1.5, "d": 2}
    fake = install("mlflow", Fake())
    mirror = trackers.MlflowRun("name", Path(), {"long": "x" * 9000}, None)
    assert len(fake.config["long"]) == 6000
    mirror.log([trackers.Row(step, 0.0, {str(key): 1.0 for key in range(30)}) for step in range(100)])
    assert len(fake.rows) == 100


def test_a_tracker_that_is_unknown_or_not_installed_stops_a_run_before_it_began(monkeypatch, tmp_path):
    with pytest.raises(UsageError, match="did you mean 'wandb'"):
        require_tracker("wandv")
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r'pip install "surefoot\[mlflow\]"'):
        surefoot.train("CartPole-v1", run_dir="none", trackers=("mlflow",), **SHORT)
    assert not Path("none").exists()


def test_a_folder_of_that_name_is_not_the_package(monkeypatch, tmp_path):
    (tmp_path / "folder_only").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(TRACKERS, "folder_only", trackers.WandbRun)
    with pytest.raises(UsageError, match="not installed"):
        require_tracker("folder_only")


REAL = """
import surefoot
surefoot.train("CartPole-v1", run_dir="runs/real", trackers=("{name}",), **{settings})
surefoot.resume("runs/real", total_steps=768, progress=False)
"""


def real_run(name, **environment):
    """Train and resume in a process of its own: nothing on stdout, nothing left running."""
    pytest.importorskip(name)
    keep = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "MLFLOW_"))}
    code, start = REAL.format(name=name, settings=SHORT), time.monotonic()
    home = {"HOME": os.getcwd(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**keep, **home, **environment}, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return Path("runs/real"), time.monotonic() - start


@pytest.mark.filterwarnings("ignore")
def test_real_wandb_offline():
    path, _ = real_run("wandb", WANDB_MODE="offline")
    run_id = json.loads((path / "trackers.json").read_text())["wandb"]
    assert len(list((path / "wandb").glob(f"offline-run-*-{run_id}/run-{run_id}.wandb"))) == 2


@pytest.mark.filterwarnings("ignore")
def test_real_wandb_without_a_key_and_without_a_server():
    path, _ = real_run("wandb")
    assert "No API key configured" in (path / "log.txt").read_text()


@pytest.mark.filterwarnings("ignore")
def test_real_mlflow():
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    path, _ = real_run("mlflow", MLFLOW_TRACKING_URI="sqlite:///ml.db")
    client = mlflow.MlflowClient("sqlite:///ml.db")
    run_id = json.loads((path / "trackers.json").read_text())["mlflow"]
    found = client.get_run(run_id)
    assert (found.info.status, found.info.run_name, found.data.params["algo"]) == ("FINISHED", "real", "ppo")
    assert [metric.step for metric in client.get_metric_history(run_id, "kl")] == [128, 256, 384, 512, 640, 768]
    assert len(client.get_metric_history(run_id, "final_eval_mean_return")) == 2
