"""Models of Stable-Baselines3 (tests/fixtures/sb3, made by make_sb3.py) act here as they did there."""

import io
import json
import re
import shlex
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

import surefoot
from surefoot.api import evaluate_run, export_run, import_sb3
from surefoot.cli.main import main
from surefoot.deploy import exporting
from surefoot.errors import UsageError
from surefoot.runs import RunDirectory
from surefoot.runs.run import Run

FIXTURES = Path(__file__).parents[1] / "fixtures"
MODELS = FIXTURES / "sb3"
ENVS = f"{FIXTURES / 'sb3_envs.py'}:"
# name: (env, algorithm, settings of the policy)
CASES = {
    "ppo-cartpole": ("CartPole-v1", "ppo", {"hidden_sizes": (8, 8), "activation": "relu"}),
    "ppo-pendulum": ("Pendulum-v1", "ppo", {"normalize_observations": True, "activation": "tanh"}),
    "a2c-cartpole": ("CartPole-v1", "a2c", {"hidden_sizes": (8,), "critic_hidden_sizes": (9, 7)}),
    "trpo-pendulum": ("Pendulum-v1", "trpo", {}),
    "ppo-gsde": ("Pendulum-v1", "ppo", {"std": "gsde", "sde_resample": 4, "action_bounds": "tanh"}),
    "recurrent": ("CartPole-v1", "ppo", {"memory": "lstm", "memory_size": 12}),
    "recurrent-shared": ("Pendulum-v1", "ppo", {"memory": "lstm", "memory_size": 6}),
    "recurrent-actor": ("CartPole-v1", "ppo", {"memory": "lstm", "memory_size": 6}),
    "maskable": (f"{ENVS}Choices", "ppo", {"embedding_size": 100}),
    "cnn": (f"{ENVS}Picture", "ppo", {"encoder": "nature", "hidden_sizes": (), "shared_trunk": True}),
    "dict": (f"{ENVS}Parts", "ppo", {"hidden_sizes": (8,), "critic_hidden_sizes": (5,), "activation": "elu"}),
    "dict-normalized": (f"{ENVS}Scaled", "ppo", {"normalize_observations": True}),
}
IMAGES = ("cnn", "dict")
NEAR = {"rtol": 1e-5, "atol": 1e-5}
QUICK = ("ppo-cartpole", "ppo-pendulum", "recurrent")
EVERY = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in CASES]


def imported(name, folder, *, env=True):
    statistics = MODELS / f"{name}-normalizer.npz"
    return import_sb3(
        MODELS / f"{name}.zip",
        normalizer=statistics if statistics.exists() else None,
        env=CASES[name][0] if env else None,
        run_dir=folder / "run",
    )


def recorded(name, number=None):
    """The observations (or one of them), and what the model said."""
    with np.load(MODELS / f"{name}.npz") as file:
        found = {key: file[key] for key in file.files}
    parts = {key.removeprefix("obs:"): found[key] for key in found if key.startswith("obs:")}
    return parts or found["obs"], found


def row(observations, number):
    if isinstance(observations, dict):
        return {key: part[number] for key, part in observations.items()}
    return observations[number]


def params_of(agent, observation, state, masks):
    """Probabilities, or means and standard deviations, as the fixtures have them."""
    if not isinstance(agent.policy.action_space, spaces.Box):
        chances = agent.probabilities(observation, state, action_masks=masks)
        return np.concatenate(chances) if isinstance(chances, list) else chances.reshape(-1)
    rows, _ = agent._rows(observation, masks)
    with torch.no_grad():
        params, _ = agent._params(*agent._inputs(rows, agent._memory(state, None, 1)))
    mean, log_std = params.numpy()[0].reshape(2, -1)
    return np.concatenate([mean, np.exp(log_std)])


@pytest.mark.parametrize("name", EVERY)
def test_an_imported_model_acts_and_judges_as_it_did(name, tmp_path):
    found = imported(name, tmp_path)
    _, algo, settings = CASES[name]
    run = Run(found.run)
    assert run.config["algo"] == found.algo == algo
    assert {key: run.config[key] for key in settings} == {
        key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()
    }
    agent, light = surefoot.load(found.run.path), surefoot.load(found.run.path, backend="numpy")
    observations, said = recorded(name)
    state = light_state = None
    for number, action in enumerate(said["action"]):
        observation = row(observations, number)
        masks = said["masks"][number] if "masks" in said else None
        np.testing.assert_allclose(params_of(agent, observation, state, masks), said["params"][number], **NEAR)
        if name != "recurrent-actor":  # whose critic has no counterpart here
            value = agent.value(observation, state, action_masks=masks)
            np.testing.assert_allclose(value, said["value"][number], **NEAR)
        own, state = agent.predict(observation, state, action_masks=masks)
        np.testing.assert_allclose(own, action, **NEAR)
        lights, light_state = light.predict(observation, light_state, action_masks=masks)
        np.testing.assert_allclose(lights, action, **NEAR)


def test_without_its_env_a_model_acts_and_says_what_is_missing(tmp_path):
    found = imported("ppo-cartpole", tmp_path, env=False)
    assert any("--env" in note for note in found.notes)
    observations, said = recorded("ppo-cartpole")
    actions, _ = surefoot.load(found.run.path).predict(observations)
    assert (actions == said["action"]).all()
    with pytest.raises(UsageError, match=r"was imported without its env; .* --env ENV"):
        evaluate_run(found.run)


@pytest.mark.slow
def test_without_its_env_images_have_their_channels_first(tmp_path):
    found = imported("cnn", tmp_path, env=False)
    observations, said = recorded("cnn")
    actions, _ = surefoot.load(found.run.path).predict(np.moveaxis(observations, -1, 1))
    assert (actions == said["action"]).all()


def changed(name, folder, change):
    """A model whose data and weights are changed by a function of both."""
    with zipfile.ZipFile(MODELS / f"{name}.zip") as file:
        content = {entry: file.read(entry) for entry in file.namelist()}
    data, weights = json.loads(content["data"]), torch.load(io.BytesIO(content["policy.pth"]), weights_only=True)
    out = io.BytesIO()
    torch.save(change(data, weights), out)
    with zipfile.ZipFile(folder / "model.zip", "w") as file:
        for entry, part in {**content, "data": json.dumps(data), "policy.pth": out.getvalue()}.items():
            file.writestr(entry, part)
    return folder / "model.zip"


@pytest.mark.slow
def test_images_that_are_not_divided(tmp_path):
    """The same function with `normalize_images=False`: its first weights are those of ours, divided by 255."""

    def undivided(data, weights):
        data["policy_kwargs"]["normalize_images"] = False
        first = [name for name in weights if name.endswith("cnn.0.weight")]
        return {**weights, **dict.fromkeys(first, weights[first[0]] / 255)}  # one tensor under several names

    file = changed("cnn", tmp_path, undivided)
    found = import_sb3(file, env=CASES["cnn"][0], run_dir=tmp_path / "run")
    observations, said = recorded("cnn")
    agent = surefoot.load(found.run.path)
    np.testing.assert_allclose(agent.probabilities(observations), said["params"], **NEAR)
    np.testing.assert_allclose(agent.value(observations), said["value"], **NEAR)


def test_a_critic_without_a_counterpart_starts_untrained(tmp_path):
    """Hidden layers for the actor only: here a critic without any would have the actor's."""

    def without(data, weights):
        kept = {name: part for name, part in weights.items() if "mlp_extractor.value_net" not in name}
        return {**kept, "value_net.weight": torch.ones(1, 4)}

    found = import_sb3(changed("ppo-cartpole", tmp_path, without), run_dir=tmp_path / "run")
    assert any("critic has no counterpart" in note for note in found.notes)
    observations, said = recorded("ppo-cartpole")
    assert (surefoot.load(found.run.path).predict(observations)[0] == said["action"]).all()


def test_the_speed_of_a_run_counts_only_what_was_trained_here(tmp_path):
    found = imported("ppo-cartpole", tmp_path)
    assert surefoot.Run(found.run.path).result["steps_per_second"] == 0.0
    for total in (1024, 1536):  # the second one reads a state that the first one wrote
        on = surefoot.resume(found.run.path, total_steps=total, progress=False)
        assert on.result["steps_per_second"] == pytest.approx((total - found.steps) / on.result["seconds"], rel=0.01)


@pytest.mark.slow
def test_an_imported_run_is_evaluated_exported_and_trained_on(tmp_path):
    found = imported("ppo-cartpole", tmp_path)
    assert found.steps == 512
    before = surefoot.load(found.run.path)
    evaluation, _, _ = evaluate_run(found.run, episodes=3)
    assert evaluation.mean_return > 5
    assert export_run(found.run, "c", tmp_path / "c").parity
    on = surefoot.resume(found.run.path, total_steps=1024, progress=False)
    assert on.result["total_steps"] == 1024
    observation = np.zeros(4, np.float32)
    assert surefoot.load(on).value(observation) != before.value(observation)
    started = surefoot.train(
        "CartPole-v1", init_from=str(found.run.path), total_steps=1024, progress=False, run_dir=tmp_path / "new",
        preset=None, eval_episodes=1,
    )  # fmt: skip
    assert started.config["hidden_sizes"] == [8, 8]


def test_the_command_says_where_the_run_is(capsys):
    words = ["import-sb3", str(MODELS / "a2c-cartpole.zip"), "--env", "CartPole-v1", "--max-episode-steps", "50"]
    assert main([*words, "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["algo"], found["steps"]) == ("a2c", 520)
    assert "note: not taken over: the optimizer's state" in err
    run = Run(RunDirectory(Path(found["run_dir"])))
    assert run.config["max_episode_steps"] == 50
    assert run.config["optimizer"] == "rmsprop"
    assert run.status["state"] == "done"
    assert main([*words, "--run-dir", found["run_dir"]]) == 2  # never over a run that is there
    assert "already holds a run; choose another --run-dir" in capsys.readouterr().err


def next_command(capsys):
    """What the command told the user to type, without `surefoot`."""
    said = re.search(r"^To go on: surefoot (.*)$", capsys.readouterr().out, re.MULTILINE)
    return shlex.split(said[1])


@pytest.mark.slow
def test_what_the_command_suggests_works_as_typed_and_so_do_film_export_and_training(capsys, monkeypatch):
    monkeypatch.setattr(exporting, "OBSERVATIONS", 320)
    folder = "runs/a name with 'quotes'"
    words = [
        "import-sb3",
        str(MODELS / "ppo-pendulum.zip"),
        "--normalizer",
        str(MODELS / "ppo-pendulum-normalizer.npz"),
    ]
    assert main([*words, "--env", "Pendulum-v1", "--max-episode-steps", "20", "--run-dir", folder]) == 0
    typed = next_command(capsys)
    assert typed[0] == "eval"
    assert main([*typed, "--episodes", "2"]) == 0
    run = typed[1]
    assert main(["video", run, "--max-steps", "10"]) == 0
    (film,) = Run(RunDirectory(Path(run))).videos
    assert film.stat().st_size > 1000
    assert main(["export", run, "--to", "c"]) == 0
    (exported,) = Path(run, "exports").iterdir()
    assert json.loads((exported / "parity.json").read_text())["parity"]["recorded"]["passed"]
    before = Run(run).checkpoints.latest
    assert main(["resume", run, "--total-steps", str(before + 1024)]) == 0
    assert Run(run).checkpoints.latest == before + 1024
    assert main(["video", run, "--max-steps", "10", "--out", "after.mp4"]) == 0


@pytest.mark.slow
def test_what_the_command_suggests_works_without_an_env_and_the_others_say_why_not(capsys, monkeypatch):
    monkeypatch.setattr(exporting, "OBSERVATIONS", 320)
    assert main(["import-sb3", str(MODELS / "a2c-cartpole.zip"), "--run-dir", "runs/one"]) == 0
    typed = next_command(capsys)
    assert typed[0] == "export"
    assert main(typed) == 0
    for command in ("eval RUN", "video RUN", "resume RUN", "train --like RUN"):
        capsys.readouterr()
        assert main([typed[1] if word == "RUN" else word for word in command.split()]) == 2
        assert "import it again and name the env: surefoot import-sb3 FILE.zip --env ENV" in capsys.readouterr().err


def test_the_documented_lines_are_those_that_wrote_the_fixtures():
    page = (FIXTURES.parents[1] / "docs" / "import.md").read_text(encoding="utf-8")
    script = (FIXTURES / "make_sb3.py").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    for line in lines.strip().splitlines():
        assert line.replace('"normalizer.npz"', "file") in script


def test_the_scale_of_rewards_comes_along(tmp_path):
    found = imported("ppo-pendulum", tmp_path)
    assert Run(found.run).config["normalize_rewards"] is True
    assert any("clipped to ±5" in note for note in found.notes)
    (state,) = found.run.checkpoints.glob("*/state.json")
    saved = json.loads(state.read_text())["collector"]["reward_normalizer"]
    with np.load(MODELS / "ppo-pendulum-normalizer.npz") as file:
        for name in ("count", "mean", "var"):
            assert saved[name] == file[f"{name}_of_returns"]


def test_the_settings_of_the_algorithm_come_along(tmp_path):
    config = Run(imported("ppo-pendulum", tmp_path).run).config
    assert config["stop_kl"] == pytest.approx(0.03)
    assert (config["num_envs"], config["rollout_length"], config["num_minibatches"]) == (2, 64, 2)
    assert (config["num_epochs"], config["clip_ratio"], config["normalize_advantage"]) == (2, 0.2, "minibatch")
