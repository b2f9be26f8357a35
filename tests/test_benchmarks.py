"""What the scripts in benchmarks/ compute, by hand on small numbers."""

import json
import signal
import sys
import time
import tomllib
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from surefoot.algorithms import ALGORITHMS, get_algorithm
from surefoot.kernels.description import Description, Linear
from surefoot.settings import options
from surefoot.training.config.resolve import resolve

FOLDER = Path(__file__).parent.parent / "benchmarks"
NEW = [
    "ablation",
    "cold_start",
    "conformance",
    "gpu",
    "homework_ppo",
    "instruments",
    "light_start",
    "mujoco_batch",
    "mujoco_equal",
    "ray_sweep",
    "results",
    "roofline",
    "same_learning",
    "scaling",
    "serve",
    "slurm_sweep",
    "suite_under_load",
    "tune",
    "versus_peers",
]


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module


@pytest.mark.parametrize("name", NEW)
def test_every_script_explains_itself(name, module, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        module(name).main()
    assert "--out FILE.json" in capsys.readouterr().out


def test_the_arithmetic_of_a_gradient_step(module):
    """Actor 3-5-2, critic 3-1, two samples. Per sample and layer: products 2·3·5 = 30, 2·5·2 = 20, 2·3·1 = 6.

    Forward and weight gradient 2·(30 + 5) + 2·(20 + 2) + 2·(6 + 1) = 128; input gradient only of the actor's second
    layer, 20. Parameters: 3·5 + 5 + 5·2 + 2 + 3·1 + 1 = 36, and 16·36 = 576.
    """
    actor = [Linear(3, 5, 0, 15, True), Linear(5, 2, 20, 30, False)]
    critic = [Linear(3, 1, 32, 35, False)]
    network = Description(3, 0, "tanh", [], actor, critic, [], 36, 32, 0)
    assert module("roofline").step_flops(network, 2) == 2 * (128 + 20) + 576
    trunk = [Linear(3, 3, 0, 9, True)]  # then the first layers of actor and critic pass their gradients on
    shared = Description(3, 0, "tanh", trunk, actor, critic, [], 48, 44, 0)
    assert module("roofline").step_flops(shared, 1) == 2 * (18 + 3) + 128 + 20 + 30 + 6 + 16 * 48


def test_the_area_under_a_learning_curve(module):
    """Ends at 10 (return 1), 20 (2 and 4: mean 3), 50 (7), until 60: (1·10 + 3·30 + 7·10) / 50."""
    assert module("same_learning").area([10, 20, 20, 50], [1.0, 2.0, 4.0, 7.0], 60) == pytest.approx(170 / 50)


def test_an_ablation_by_hand(module):
    """Seed by seed +1, +2, +3: 2 on average. And −2, +2, with a third seed that has no partner: 0."""
    ablation = module("ablation")
    better = ablation.difference(np.full(3, 10.0), np.array([11.0, 12.0, 13.0]))
    assert better.value == 2.0
    study = ablation.Study({})
    for setting, scores in {"off": (5.0, 5.0), "spo": (3.0, 7.0, 99.0), "outer": (9.0,)}.items():
        for seed, score in enumerate(scores):
            study.note("cartpole", setting, 4 * (seed // 2) + seed % 2, {"score": score})
    study.note("cartpole", "outer", 1, {"error": "not finite"})
    off, on = study.pairs("cartpole", "spo")
    assert (off.tolist(), on.tolist()) == ([5.0, 5.0], [3.0, 7.0])
    unclear = ablation.difference(off, on)
    assert unclear.value == 0.0
    assert unclear.low < 0.0 < unclear.high
    assert [ablation.verdict(ablation.Estimate(1.0, *ends)) for ends in ((0.5, 2), (-1, 2), (-2, -1))] == [
        "helps", "unclear", "hurts"]  # fmt: skip
    lines = ablation.table(study)
    assert "| `--outer-learning-rate 1.5` | cartpole | 1 | 5.0 | 9.0 | +4.0 | one seed |" in lines
    assert any(line.startswith("| `--surrogate spo` | 1 | 0 | 1 | 0 | 0.50 (") for line in lines)


def test_every_ablation_is_a_valid_run(module):
    ablation = module("ablation")
    assert {name for task in ablation.TASKS.values() for name in ablation.settings_for(task)} >= set(ablation.SETTINGS)
    for name, task in ablation.TASKS.items():
        assert "off" in ablation.settings_for(task), name
        for setting in ablation.settings_for(task):
            given = ablation.overrides(task, setting, 1.0)
            resolve(task.env, "ppo", preset=task.preset, overrides=given)


@pytest.fixture
def results(module, monkeypatch):
    """The study with four candidates, whose scores are worked out by hand; three are promising enough for all seeds."""
    results = module("results")
    monkeypatch.setattr(results, "PROMISING", 3)
    monkeypatch.setattr(results, "KEEP", 2)
    few = {name: module("candidates").Candidate("ppo", {"gamma": gamma}) for name, gamma in
           (("a", 0.9), ("b", 0.95), ("c", 0.99), ("d", 0.999))}  # fmt: skip
    monkeypatch.setattr(results, "candidates", lambda env: few)
    return results


def fill(results, study, scores):
    """Note a score for everything that is missing, `scores(run)`, until nothing is; returns the runs in order."""
    order = []
    while missing := study.missing():
        order.append(missing[0])
        study.note(missing[0], scores(missing[0]))
    return order


def test_the_best_candidate_is_chosen_on_other_seeds_than_it_is_reported_on(results, monkeypatch, tmp_path):
    """At 300k steps, a is the worst on the first seed, and then b > d > c over all seeds. At all steps d is best.
    Reported are five seeds of d, and the peers."""
    study = results.Study({}, envs=("Hopper-v5",))
    short = {"a": 1.0, "b": 4.0, "c": 3.0, "d": 2.0}
    full = {"b": 5.0, "c": 6.0, "d": 7.0, "sb3-ppo": 0.0, "sb3-trpo": 9.0}

    def score(run):
        level = short[run.who] if run.steps == 300_000 else full[run.who]
        level += 2.0 * (run.who == "d" and run.seed > 100)
        return {"score": level + 0.1 * run.seed, "seconds": 60.0}

    order = fill(results, study, score)
    assert [name for name, _ in study.first_round("Hopper-v5")] == ["b", "d", "c"]
    assert study.winner("Hopper-v5") == "d"
    counts = [(run.who, run.steps // 1000, run.seed) for run in order]
    assert counts[:4] == [(who, 300, 100) for who in "abcd"]
    assert counts[4:10] == [(who, 300, seed) for seed in (101, 102) for who in "bcd"]
    assert counts[10:16] == [(who, 1000, seed) for seed in (100, 101, 102) for who in "bd"]
    assert counts[16:21] == [("d", 1000, seed) for seed in range(5)]
    assert counts[21:] == [(peer, 1000, seed) for peer in ("sb3-ppo", "sb3-trpo") for seed in range(5)]
    text = results.page(study)
    assert "| Hopper-v5 | 1M | d | 7.2 (" in text
    assert "- **Hopper-v5**: sb3-contrib TRPO 9.2; published 3,618 (trpo, v3, 1M, 1 run" in text
    assert "surefoot train Hopper-v5 --algo=ppo --preset=none --gamma=0.999 --total-steps=1000000 --seed 0" in text
    monkeypatch.setattr(results, "PRESETS", tmp_path)
    results.write_presets(study)
    (preset,) = tmp_path.rglob("*.toml")
    assert preset == tmp_path / "Hopper-v5" / "ppo.toml"
    settings = {"env": "Hopper-v5", "algo": "ppo", "total_steps": 1_000_000, "gamma": 0.999}
    assert tomllib.loads(preset.read_text(encoding="utf-8")) == settings
    preset.write_text("# Tuned by hand.\n")
    results.write_presets(study)
    assert preset.read_text() == "# Tuned by hand.\n"


def test_a_run_that_failed_is_the_worst_and_other_settings_are_another_run(results, monkeypatch):
    study = results.Study({}, sides=("ours",), envs=("Hopper-v5",))
    fill(results, study, lambda run: {"error": "x"} if run.who == "d" else {"score": 1.0 + (run.who == "b")})
    assert [name for name, _ in study.first_round("Hopper-v5")] == ["b", "a", "c"]
    assert study.winner("Hopper-v5") == "b"
    assert "failed" in results.page(study)
    kinds = results.candidates("Hopper-v5")
    monkeypatch.setattr(results, "candidates", lambda env: kinds | {"b": results.Candidate("ppo", {"gamma": 0.5})})
    assert {run.who for run in study.missing()} == {"b"}


def test_every_row_has_candidates_of_all_algorithms_and_its_peers(module):
    candidates, zoo = module("candidates"), module("peers.zoo")
    published = json.loads((FOLDER / "results" / "published.json").read_text(encoding="utf-8"))["rows"]
    assert len(candidates.STEPS) == 14
    for env in candidates.STEPS:
        found = candidates.candidates(env)
        assert {one.algo for one in found.values()} == set(ALGORITHMS)
        for one in found.values():
            resolve(env, one.algo, preset="none", overrides={**one.settings, "total_steps": 300_000})
        assert all(env in zoo.SETTINGS[algo] for algo in ("ppo", "trpo"))
        assert published[env]


SAVES = """trap 'echo saved > {0}/saved; exit 143' TERM; mkdir -p {0}; touch {0}/begun; kill -TERM $PPID
while true; do sleep 0.05; done"""


@pytest.mark.skipif(sys.platform != "linux", reason="the studies need Linux")
def test_a_study_goes_on_where_it_was_stopped(module, tmp_path):
    """One run is complete, one fails, and one saves itself when the study is told to stop, and is then continued."""
    jobs = module("jobs")

    def job(name, script, again="exit 7"):
        folder, begun = tmp_path / name, lambda folder: (folder / "begun").exists()
        script, again = (("sh", "-c", text.format(folder)) for text in (script, again))

        def outcome(folder):
            return {"score": 1.0} if (folder / "result").exists() else None

        return jobs.Job(name, folder, script, again, begun, outcome)

    all_of = [
        job("done", "mkdir {0}; touch {0}/result"),
        job("failed", "echo some words; echo the reason; exit 3"),
        job("long", SAVES, "test -f {0}/saved && touch {0}/result"),
    ]
    found = {}

    def missing():
        return [job for job in all_of if job.name not in found]

    def ended(job, outcome):
        found[job.name] = outcome

    assert jobs.carry_out(missing, ended, slots=1) == signal.SIGTERM
    assert found == {"done": {"score": 1.0}, "failed": {"error": "the reason"}}
    assert (tmp_path / "long" / "saved").exists()
    assert jobs.carry_out(missing, ended, slots=2) == 0
    assert found["long"] == {"score": 1.0}
    assert jobs.carry_out(lambda: all_of, ended, slots=2, minutes=0.0) == 0  # no time, nothing is started


def test_only_one_study_at_a_time(module, tmp_path):
    only_one = module("jobs").only_one
    with only_one(tmp_path), pytest.raises(SystemExit, match="another study is at work"), only_one(tmp_path):
        pass
    with only_one(tmp_path):
        pass


@pytest.mark.slow
def test_a_run_of_a_study_is_continued_and_read(module, tmp_path):
    """Killed without warning in the middle: the same command, and the score is that of a run in one go."""
    jobs = module("jobs")
    words = jobs.our_words("CartPole-v1", "ppo", {"total_steps": 16_384, "log_every": 1024, "checkpoint_every": 2048})
    found = {}
    for name in ("whole", "cut"):
        job = jobs.our_run(name, tmp_path / name, words, seed=1, episodes=2)
        if name == "cut":
            process = jobs.start(job)
            while not list((tmp_path / "cut" / "checkpoints").glob("*")) and process.poll() is None:
                time.sleep(0.02)
            process.kill()
            process.wait()
            assert job.begun(job.folder)
        jobs.carry_out(
            lambda job=job: [] if job.name in found else [job],
            lambda job, outcome: found.update({job.name: outcome}),
            slots=1,
        )
    assert found["cut"]["score"] == found["whole"]["score"]
    assert found["cut"]["steps"] == 16_384


def test_the_difference_of_two_engines(module):
    interval = module("same_learning").difference_interval
    middle, low, high = interval([11.0, 22.0, 33.0], [10.0, 20.0, 30.0])
    assert (middle, low, high) == (pytest.approx(0.1), pytest.approx(0.1), pytest.approx(0.1))  # seed by seed
    middle, low, high = interval([-90.0, -110.0], [-100.0, -100.0])
    assert (middle, low, high) == (0.0, pytest.approx(-0.1), pytest.approx(0.1))


def test_the_settings_are_the_same_on_both_sides(module):
    """Where both have a name for a thing, they have the same value; and surefoot takes its flags."""
    names = {"gamma": "gamma", "gae_lambda": "gae_lambda", "learning_rate": "learning_rate", "num_epochs": "n_epochs",
             "clip_ratio": "clip_range", "entropy_coef": "ent_coef", "value_clip": "clip_range_vf",
             "value_epochs": "n_critic_updates", "cg_iterations": "cg_max_steps", "cg_damping": "cg_damping",
             "max_kl": "target_kl"}  # fmt: skip
    for setting in module("peers.settings").SETTINGS:
        shape = {"num_envs": setting.num_envs, "rollout_length": setting.rollout_length}
        config = resolve(setting.env, setting.algo, "none", None, shape | setting.ours)
        own = config.flat()
        known = {option.name for option in options(get_algorithm(setting.algo).config_type)}
        for ours, theirs in names.items():
            if ours in known and theirs in setting.theirs:
                assert own[ours] == setting.theirs[theirs], (setting.name, ours)
        parts = own.get("num_minibatches", own.get("value_minibatches"))
        if "batch_size" in setting.theirs:
            assert setting.num_envs * setting.rollout_length == parts * setting.theirs["batch_size"]
        if setting.jax:
            assert (own["num_epochs"], parts) == (setting.jax["epochs"], setting.jax["minibatches"])
        falling = {"learning_rate": own["learning_rate_schedule"], "clip_range": own.get("clip_ratio_schedule")}
        assert {name for name, schedule in falling.items() if schedule == "linear"} == set(setting.linear)
        assert setting.normalize == own["normalize_observations"] == own["normalize_rewards"]
        assert set(setting.steps) == {"surefoot", *setting.peers} >= set(setting.goals)


def test_the_tasks_that_defaults_are_studied_on_pay_as_they_say(module):
    """Exactly what is wanted earns 1 a step, random play about the `low` of the scale."""
    untuned = module("peers.untuned")
    for name in ("match-box", "match-binary", "match-choices", "match-choice"):
        env, total = untuned.make(name), 0.0
        obs, _ = env.reset(seed=0)
        env.action_space.seed(1)  # not the stream that the env draws from
        over = False
        while not over:
            assert env.observation_space.contains(obs)
            assert env.step(obs)[1] == 1.0
            obs, reward, _, over, _ = env.step(env.action_space.sample())
            total += reward
        assert 2 * total == pytest.approx(untuned.TASKS[name].low, abs=8.0), name
    env = untuned.make("reach-dict")
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    after, reward, *_ = env.step(1)
    assert after["position"][0] > obs["position"][0]
    assert reward == pytest.approx(-np.linalg.norm(after["position"] - after["goal"]))


def test_the_summary_of_the_defaults(module):
    """Normalised: 0, ¼, ½, 1 on one task, four times 1 on the other."""
    page = module("defaults_page")
    found = {
        "match-binary": {"0": 50.0, "1": 62.5, "2": 75.0, "3": 100.0},
        "cartpole": {"0": 500.0, "1": 500.0, "2": 500.0, "3": 500.0},
    }
    middle, low, high = page.summary(found, list(found))
    assert middle == pytest.approx((0.5 + 1.0 + 1.0 + 1.0) / 4)  # without the two smallest and the two largest of eight
    assert low <= middle <= high <= 1.0
    assert page.cell(found, "match-binary") == "71.9 / 50.0"
    assert page.cell(found, "hopper") == "–"


def test_tables_go_into_the_page(tmp_path, module):
    fill = module("report").fill
    page = "before\n<!-- results a -->\nold\n<!-- end -->\n<!-- results b -->\nkept\n<!-- end -->\n"
    (tmp_path / "a.md").write_text("| x |\n")
    (tmp_path / "a.json").write_text('{"machine": {"cpu": "C", "cores": 2, "commit": "abc"}}')
    done = fill(page, tmp_path)
    assert "| x |" in done
    assert "old" not in done
    assert "kept" in done
    assert fill(done, tmp_path) == done


def test_a_benchmark_of_tunes_may_miss_one_env_but_no_budget(module):
    passed = module("tune").passed
    better, none = {"better": True, "within_budget": True}, {"better": False, "within_budget": True}
    assert passed({"a": better, "b": none})
    assert not passed({"a": none, "b": none})
    assert not passed({"a": none})
    assert not passed({"a": better, "b": {"better": True, "within_budget": False}})
