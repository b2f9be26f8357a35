"""`episodes.csv`: every training episode once, with the seed that it was reset with."""

import errno
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import pytest
from gymnasium.vector import SyncVectorEnv

import surefoot
from surefoot.cli.main import main
from surefoot.engine.episodes import Episode
from surefoot.engine.group import ALONE
from surefoot.envs.pettingzoo_envs import ParallelEnvs
from surefoot.envs.seeds import EpisodeSeeds, episode_seed
from surefoot.errors import CheckpointError
from surefoot.runs.files import LinesFile
from surefoot.training.reports import episode_log
from surefoot.training.reports.episode_log import EpisodeLog
from tests import parallel_worlds
from tests.helpers import episode_rows
from tests.worker_envs import Told

TOLD = f"{Path(__file__).parent.parent / 'worker_envs.py'}:Told"
QUIET = {"progress": False, "eval_episodes": 0, "preset": "none", "seed": 5, "total_steps": 640}
ROLLOUT = {**QUIET, "num_envs": 4, "rollout_length": 16, "num_minibatches": 1}

COLLECTOR, CPU = SimpleNamespace(reset_each_rollout=False), SimpleNamespace(type="cpu")


class Stop(surefoot.Callback):
    """Leaves some time after the run's checkpoint, as a kill would."""

    def __init__(self, update):
        self.update = update

    def on_rollout(self, trainer, rollout):
        if trainer.update == self.update:
            trainer.save = lambda **_: None
            raise KeyboardInterrupt


WAYS = {
    "rollouts": {"algo": "ppo", **ROLLOUT},
    "workers": {"algo": "ppo", **ROLLOUT, "workers": 2},
    "whole episodes": {"algo": "reinforce", **QUIET, "num_envs": 4, "max_episode_steps": 10},
    "a reset each rollout": {
        "algo": "reinforce", **QUIET, "num_envs": 4, "rollout_length": 4, "reset_each_rollout": True
    },
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_every_episode_has_the_seed_that_it_was_reset_with(way):
    run = surefoot.train(TOLD, **WAYS[way], log_info=["seed"])
    rows = run.episodes
    assert len(rows) == run.result["episodes"] > 20
    assert list(rows[0]) == ["step", "return", "length", "seed", "env", "info/seed", "seconds"]
    if way == "a reset each rollout":  # those that the rollout cut have no last info
        assert all(row["seed"] is not None for row in rows)
        rows = [row for row in rows if row["info/seed"] is not None]
        assert rows
    assert [row["seed"] for row in rows] == [row["info/seed"] for row in rows]
    assert {row["env"] for row in rows} == {0, 1, 2, 3}
    assert sorted(row["step"] for row in rows) == [row["step"] for row in rows]
    assert rows[-1]["step"] <= run.result["total_steps"]


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_the_rows_of_an_update_are_what_its_metrics_sum_up(engine):
    run = surefoot.train("CartPole-v1", engine=engine, threads=1, log_every=1, **ROLLOUT)
    following = Counter()
    for row in run.episodes:
        assert row["seed"] == episode_seed(5, row["env"], following[row["env"]])
        assert row["return"] == row["length"]
        following[row["env"]] += 1
    for row in run.metrics:
        own = [episode["return"] for episode in run.episodes if episode["step"] == row["step"]]
        assert row["episode_return"] == (pytest.approx(sum(own) / len(own)) if own else None)
    seconds = [row["seconds"] for row in run.episodes]
    assert seconds == sorted(seconds)
    assert 0.0 < seconds[-1] <= run.result["seconds"]


def test_the_agents_of_a_world_share_the_seed_of_its_episode():
    made = []

    def make():
        made.append(parallel_worlds.RandomWorld())
        return made[-1]

    envs = ParallelEnvs(make, 2, 9)
    log = EpisodeLog(LinesFile(Path("episodes.csv")))
    trainer = SimpleNamespace(envs=envs, collector=COLLECTOR, step=0, seconds=0.0, group=ALONE, device=CPU)
    log.on_start(trainer)
    envs.reset()
    expected = []
    for rollout in range(30):
        trainer.journal = SimpleNamespace(latest=[])
        for _ in range(5):
            begun = [copy.episode for copy in envs.copies for _ in envs.agents]
            step = envs.step([1] * envs.num_envs)
            trainer.journal.latest += [Episode(row, 0.0, 1) for row in step.final_info]
            expected += [str(episode_seed(9, row // 3, begun[row])) for row in step.final_info]
        trainer.step = rollout
        trainer.seconds += 0.7
        log.on_update(trainer, {})
    log._log.close()
    found = [line.split(",")[3] for line in Path("episodes.csv").read_text(encoding="utf-8").splitlines()[1:]]
    assert found == expected
    assert len(found) > 50


def test_envs_without_seeds_of_their_own_leave_the_cell_empty():
    envs = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 4)
    rows = surefoot.train(envs, **{**ROLLOUT, "num_envs": 4}).episodes
    assert rows
    assert all(row["seed"] is None and row["length"] > 0 for row in rows)


def test_an_episode_that_a_lost_worker_cut_makes_the_seeds_beside_it_unknown(tmp_path):
    class Envs:
        num_agents, now = 1, [0, 0]

        def episode_numbers(self):
            return list(self.now)

        def episode_seeds(self, rows, numbers):
            return EpisodeSeeds(1).of(rows, numbers)

    envs, log = Envs(), EpisodeLog(LinesFile(tmp_path / "episodes.csv"))
    trainer = SimpleNamespace(envs=envs, collector=COLLECTOR, step=1, seconds=9.0, group=ALONE, device=CPU)
    log.on_start(trainer)
    for now, ended in (([1, 2], [0, 1]), ([2, 3], [0, 1])):  # one of the second env's is missing at first
        envs.now, trainer.journal = now, SimpleNamespace(latest=[Episode(row, 1.0, 1) for row in ended])
        trainer.seconds += 5.0
        log.on_update(trainer, {})
    cells = [line.split(",")[3] for line in (tmp_path / "episodes.csv").read_text().splitlines()[1:]]
    assert cells == [str(episode_seed(1, 0, 0)), "", str(episode_seed(1, 0, 1)), str(episode_seed(1, 1, 2))]


@pytest.mark.parametrize("way", ["rollouts", "whole episodes", "a reset each rollout"])
def test_equal_runs_and_a_resumed_one_have_equal_rows_but_for_the_seconds(way, tmp_path):
    settings = {**WAYS[way], "log_info": ["seed"], "checkpoint_every": 200}
    whole, again = (surefoot.train(TOLD, run_dir=tmp_path / name, **settings) for name in ("whole", "again"))
    assert episode_rows(whole) == episode_rows(again)
    with pytest.raises(KeyboardInterrupt):
        surefoot.train(TOLD, run_dir=tmp_path / "killed", **settings, callbacks=[Stop(again.result["updates"] - 2)])
    killed = surefoot.resume(tmp_path / "killed", progress=False)
    assert episode_rows(killed) == episode_rows(whole)
    assert (killed.path / "metrics.jsonl").read_bytes() == (whole.path / "metrics.jsonl").read_bytes()


def test_a_run_that_a_callback_of_the_users_ends_has_logged_its_last_episodes():
    class Fail(surefoot.Callback):
        def on_update(self, trainer, metrics):
            if trainer.update == 3:
                self.episodes = trainer.episodes
                raise ValueError("enough")

    fail = Fail()
    with pytest.raises(ValueError, match="enough"):
        surefoot.train(Told, **ROLLOUT, callbacks=[fail], run_dir="run")
    assert len(surefoot.Run("run").episodes) == fail.episodes > 0


def refuse(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_rows_wait_for_a_full_disk_but_not_without_end(tmp_path, monkeypatch):
    log = EpisodeLog(LinesFile(tmp_path / "episodes.csv"))
    said = []
    trainer = SimpleNamespace(envs=None, collector=COLLECTOR, step=1, seconds=0.0, group=ALONE, device=CPU)
    trainer.journal, trainer.warn = SimpleNamespace(latest=[Episode(0, 1.5, 2)]), said.append
    log.on_start(trainer)

    def update():
        trainer.seconds += 5.0
        log.on_update(trainer, {})
        log.on_log(trainer, {}, {})

    with monkeypatch.context() as full:
        full.setattr("os.write", refuse)
        full.setattr(episode_log, "MOST_WAITING", 200)
        for _ in range(50):
            update()
        assert not (tmp_path / "episodes.csv").read_text()
        assert len(said) == 1
        assert "no episode is logged" in said[0]
        assert sum(map(len, log._log.pending)) < 300
    log._log.flush()
    update()
    update()
    lines = (tmp_path / "episodes.csv").read_text().splitlines()
    assert lines[0] == "step,return,length,seed,env,seconds"
    assert lines[1] == "1,1.5,2,,0,5.000"
    assert lines[-1] == f"1,1.5,2,,0,{trainer.seconds:.3f}"
    assert 5 < len(lines) < 20
    assert len(said) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step,return\n1,2,3\n", "damaged in line 2"),
        ("step,return\n1,x\n", "damaged in line 2"),
        ("step,return\n\xff\n", "damaged in line 2"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_the_line(text, message):
    run = surefoot.train("CartPole-v1", **ROLLOUT)
    (run.path / "episodes.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=message):
        _ = run.episodes


def test_a_torn_last_line_is_left_out_and_an_odd_name_is_quoted():
    class Odd(Told):
        def info(self):
            return {'a, "b"': 1.0}

    run = surefoot.train(Odd, **ROLLOUT, log_info=['a, "b"', "none"])
    file = run.path / "episodes.csv"
    file.write_bytes(file.read_bytes() + b"640,1.")
    rows = run.episodes
    assert len(rows) == run.result["episodes"]
    assert rows[0]['info/a, "b"'] == 1.0
    assert rows[0]["info/none"] is None


def test_a_run_of_an_earlier_version_gets_the_file_when_it_is_resumed(tmp_path):
    old = next((Path(__file__).parent.parent / "fixtures" / "runs-0.1.0").glob("*/manifest.json")).parent
    shutil.copytree(old, tmp_path / "old")
    run = surefoot.Run(tmp_path / "old")
    assert run.episodes == []
    assert (run.name, run.tags) == (None, ())
    before = run.metrics[-1]["step"] if run.metrics else 0
    assert main(["resume", str(run.path)]) == 0
    assert run.episodes
    assert all(row["step"] > before for row in run.episodes)


def test_while_a_gpu_learns_lines_are_written(tmp_path):
    log = EpisodeLog(file := LinesFile(tmp_path / "episodes.csv"))
    gpu = SimpleNamespace(type="cuda")
    trainer = SimpleNamespace(envs=None, collector=COLLECTOR, step=1, seconds=9.0, group=ALONE, device=gpu, errands=[])
    log.on_start(trainer)
    trainer.journal = SimpleNamespace(latest=[Episode(0, 1.0, 1)])
    log.on_update(trainer, {})
    assert not file.path.exists()
    for errand in trainer.errands:
        errand()
    assert len(file.path.read_text().splitlines()) == 2
