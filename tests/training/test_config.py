"""Precedence, origins, presets, and errors that name the key and the fix."""

import re

import pytest

import surefoot
from surefoot.algorithms import ALGORITHMS
from surefoot.cli.main import main
from surefoot.errors import UsageError
from surefoot.training.config import presets
from surefoot.training.config.resolve import all_options, preset_notes, resolve
from surefoot.training.config.toml_files import to_toml


@pytest.fixture
def preset(monkeypatch):
    values = {"env": "CartPole-v1", "algo": "ppo", "gamma": 0.5, "num_envs": 4, "clip_ratio": 0.3}
    monkeypatch.setattr("surefoot.training.config.resolve.automatic_preset", lambda env, algo: "CartPole-v1/ppo")
    monkeypatch.setattr("surefoot.training.config.resolve.load_preset", lambda name: values)


def test_flags_beat_the_file_which_beats_the_preset_which_beats_defaults(preset, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("num_envs = 2\ngamma = 0.6\n")
    config = resolve("CartPole-v1", config_file=file, overrides={"gamma": 0.7})
    assert config.algorithm.gamma == 0.7
    assert config.algorithm.num_envs == 2
    assert config.algorithm.clip_ratio == 0.3
    assert config.algorithm.num_epochs == 10
    assert config.origins["gamma"] == "given"
    assert config.origins["num_envs"] == f"file {file}"
    assert config.origins["clip_ratio"] == "preset CartPole-v1/ppo"
    assert config.origins["num_epochs"] == "default"


def test_preset_none_uses_defaults_alone(preset):
    assert resolve("CartPole-v1", preset="none").algorithm.gamma == 0.99


def test_a_preset_of_another_algorithm_is_refused(preset):
    with pytest.raises(UsageError, match="is for ppo, not trpo"):
        resolve("CartPole-v1", "trpo", preset="CartPole-v1/ppo")


def test_the_written_config_gives_the_same_run(tmp_path):
    overrides = {
        "wrappers": ['TimeLimit{"max_episode_steps":9}'],
        "env_kwargs": {"sutton_barto_reward": True},
        "seed": 3,
    }
    config = resolve("CartPole-v1", overrides={**overrides, "hidden_sizes": "32,16", "max_grad_norm": "none"})
    file = tmp_path / "config.toml"
    file.write_text(to_toml(config))
    again = resolve(preset=None, config_file=file)
    assert again.flat() == config.flat()
    assert again.algorithm.max_grad_norm is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lerning_rate": 1}, "unknown setting 'lerning_rate'.*did you mean 'learning_rate'"),
        ({"max_kl": 1}, "'max_kl' .* is not a setting of ppo; it belongs to npg, trpo"),
        ({"num_minibatches": 3}, "num_minibatches=3 does not divide 1024 samples; try"),
        ({"total_steps": -1}, "total_steps=-1 is too small"),
        ({"total_steps": 100}, "less than one rollout of 1024"),
        ({"total_steps": "many"}, "total_steps='many' is not a whole number"),
        ({"gamma": 1.5}, "gamma=1.5 is too large; it must be at most 1"),
        ({"gamma": "nan"}, "gamma is NaN"),
        ({"num_envs": 10**9}, "num_envs=1000000000 is too large"),
        ({"activation": "gelu"}, "activation='gelu' is not one of"),
        ({"adaptive_kl": 0.01, "learning_rate_schedule": "linear"}, "adaptive_kl sets the learning rate itself"),
        ({"shared_trunk": True, "critic_hidden_sizes": (8,)}, "no effect with shared_trunk"),
        ({"eval_env_kwargs": {"a": 1}}, "no effect without eval_env"),
        ({"action_bounds": "beta", "std": "state"}, "std has no effect with action_bounds=beta"),
        ({"action_bounds": "beta", "log_std_init": -1.0}, "log_std_init has no effect with action_bounds=beta"),
        ({"memory_size": 32}, "memory_size=32 has no effect with memory=none; set memory=gru or lstm"),
        ({"env_timeout": 5.0}, "env_timeout has no effect without workers"),
        ({"env_timeout": 5.0, "workers": 0}, "env_timeout has no effect without workers"),
        ({"selection_episodes": 5}, "selection_episodes has no effect without eval_every"),
        ({"algo": "reinforce", "critic_hidden_sizes": (8,)}, "critic_hidden_sizes has no effect with reinforce"),
        ({"algo": "reinforce", "shared_trunk": True}, "shared_trunk has no effect with reinforce"),
        ({"algo": "reinforce", "rollout_length": 64}, "rollout_length has no effect with reinforce"),
        (
            {"algo": "reinforce", "reset_each_rollout": True, "episodes_per_env": 2},
            "episodes_per_env has no effect with reset_each_rollout",
        ),
        ({"encoder": "impla"}, "encoder='impla' is not one of: .*; did you mean 'impala'"),
    ],
)
def test_bad_settings_are_refused_in_the_users_words(settings, message):
    with pytest.raises(UsageError, match=message):
        resolve("CartPole-v1", preset="none", overrides=settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"memory": "gru", "memory_size": 32},
        {"workers": 2, "env_timeout": 5.0},
        {"workers": "auto", "env_timeout": 5.0},  # whether there will be workers is measured
        {"eval_every": 10_000, "selection_episodes": 5},
        {"eval_every": None, "selection_episodes": 5},  # switched off, not forgotten
        {"algo": "reinforce", "reset_each_rollout": True, "rollout_length": 64},
        {"algo": "reinforce", "critic_hidden_sizes": "none"},
    ],
)
def test_the_same_settings_where_they_have_an_effect(settings, tmp_path):
    config = resolve("CartPole-v1", preset="none", overrides=settings)
    file = tmp_path / "config.toml"
    file.write_text(to_toml(config))
    assert resolve(preset=None, config_file=file).flat() == config.flat()


def test_a_file_may_name_settings_without_effect(tmp_path):
    """As a run's own does when something is switched off: `--like RUN --eval-every none`."""
    file = tmp_path / "config.toml"
    file.write_text(to_toml(resolve("CartPole-v1", overrides={"eval_every": 10_000, "selection_episodes": 5})))
    config = resolve(preset=None, config_file=file, overrides={"eval_every": "none"})
    assert (config.run.eval_every, config.run.selection_episodes) == (None, 5)


def test_a_time_limit_for_envs_without_workers_is_refused_wherever_it_comes_from(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text('env = "CartPole-v1"\nenv_timeout = 5.0\n')
    said = r"env_timeout=5 \(file .*mine.toml\) has no effect without workers.*set --workers 1"
    with pytest.raises(UsageError, match=said):
        surefoot.train(config=file, total_steps=1024)
    assert main(["train", "--config", str(file), "--dry-run"]) == 2
    assert "set --workers 1 (or more) as well, or drop it" in capsys.readouterr().err
    assert main(["train", "--config", str(file), "--workers", "1", "--dry-run"]) == 0
    file.write_text('env = "envpool:CartPole-v1"\nenv_timeout = 5.0\n')
    with pytest.raises(UsageError, match="drop it, as no worker can step this env"):
        surefoot.train(config=file, total_steps=1024)
    assert not (tmp_path / "runs").exists()


def test_a_run_that_auto_left_without_workers_can_be_resumed_with_its_time_limit(tmp_path):
    """Its own file names both."""
    file = tmp_path / "config.toml"
    written = to_toml(resolve("CartPole-v1", overrides={"workers": "auto", "env_timeout": 5.0}))
    file.write_text(written.replace('workers = "auto"', "workers = 0"))
    assert "workers = 0" in file.read_text()
    assert resolve(preset=None, config_file=file).env.env_timeout == 5.0


def test_value_minibatches_of_trpo_must_divide_too():
    with pytest.raises(UsageError, match="value_minibatches=3 does not divide"):
        resolve("CartPole-v1", "trpo", preset="none", overrides={"value_minibatches": 3})


@pytest.mark.parametrize("algo", ["npg", "trpo"])
def test_natural_steps_have_no_minibatches_to_normalise(algo):
    with pytest.raises(UsageError, match="use normalize_advantage=batch"):
        resolve("CartPole-v1", algo, preset="none", overrides={"normalize_advantage": "minibatch"})


def test_a_broken_config_file_is_named(tmp_path):
    file = tmp_path / "broken.toml"
    file.write_text("gamma = = 3")
    with pytest.raises(UsageError, match=r"broken.toml is not valid TOML"):
        resolve("CartPole-v1", config_file=file)
    with pytest.raises(UsageError, match="cannot read"):
        resolve("CartPole-v1", config_file=tmp_path / "none.toml")


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_names_are_unique_and_every_setting_has_help(algo):
    for option in all_options(algo).values():
        assert option.help, option.name
        assert option.help.endswith((".", ")")), f"{option.name}: {option.help}"


@pytest.mark.parametrize("name", presets.list_presets())
def test_every_preset_resolves(name):
    config = resolve(preset=name)
    assert config.preset == name
    folder, _, stem = name.partition("/")
    if folder == "family":  # for any env of its kind
        assert (config.env.env, config.run.algo) == ("", stem.partition("-")[2])
    elif folder not in ("homework", "lecture"):
        assert (config.env.env, config.run.algo) == (folder, stem)


@pytest.mark.parametrize("name", presets.list_presets())
def test_a_preset_states_its_minibatches(name):
    """It was tuned with them, so a better default must not change what it does."""
    algorithm = resolve(preset=name).algorithm
    assert "auto" not in [getattr(algorithm, key, None) for key in ("num_minibatches", "value_minibatches")]


@pytest.mark.parametrize("algo", ["ppo", "ppo-penalty", "npg", "trpo"])
@pytest.mark.parametrize(
    "settings",
    [
        {"num_envs": 3, "rollout_length": 5},
        {"num_envs": 1, "rollout_length": 127},
        {"num_envs": 6, "memory": "gru"},
        {"num_envs": 7, "memory": "lstm"},
    ],
)
def test_automatic_minibatches_fit_any_size(algo, settings):
    resolve("CartPole-v1", algo, preset="none", overrides=settings)


@pytest.mark.parametrize(
    ("env", "preset"),
    [
        ("ALE/Pong-v5", "family/atari-ppo"),
        ("HalfCheetah-v4", "family/mujoco-ppo"),
        ("HumanoidStandup-v4", "family/mujoco-ppo"),
        ("InvertedDoublePendulum-v4", "family/mujoco-ppo"),
        ("CartPole-v1", "CartPole-v1/ppo"),
        ("Blackjack-v1", None),
    ],
)
def test_an_env_without_a_preset_of_its_own_gets_the_defaults_of_its_family(env, preset):
    assert resolve(env).preset == preset


def test_who_names_no_algorithm_is_told_which_ones_were_tuned_for_the_env():
    (note,) = preset_notes(resolve("Walker2d-v5"))
    assert re.fullmatch(r"settings tuned for Walker2d-v5 come with --algo ppo-penalty( or .+)?", note)
    assert preset_notes(resolve("Walker2d-v5", "ppo")) == []
    assert preset_notes(resolve("Walker2d-v5", preset="none")) == []
    assert preset_notes(resolve("CartPole-v1")) == []
    assert preset_notes(resolve("Walker2d-v4")) == []


def test_preset_names_cannot_leave_their_folder():
    for name in ("../config", "homework/../x", "/etc/passwd", "..", "a/b/c"):
        with pytest.raises(UsageError, match="unknown preset"):
            presets.load_preset(name)


TUNED = [name.split("/") for name in presets.list_presets() if not name.startswith(("homework", "lecture", "family"))]


@pytest.mark.parametrize(("env", "algo"), TUNED)
def test_a_memory_goes_with_every_tuned_preset(env, algo):
    config = resolve(env, algo, overrides={"memory": "gru"})
    plain = resolve(env, algo)
    assert config.preset == plain.preset
    for name in ("num_minibatches", "value_minibatches"):
        if hasattr(config.algorithm, name):
            chosen, tuned, envs = (
                getattr(config.algorithm, name),
                getattr(plain.algorithm, name),
                plain.algorithm.num_envs,
            )
            assert envs % chosen == 0
            assert (chosen == tuned) == (envs % tuned == 0)
            assert config.origins[name] == ("memory" if chosen != tuned else plain.origins[name])


def test_minibatches_that_somebody_typed_are_not_changed_for_a_memory(tmp_path):
    with pytest.raises(UsageError, match=r"num_envs=8 is not a multiple of num_minibatches=16; change one"):
        resolve("CartPole-v1", preset="none", overrides={"memory": "gru", "num_envs": 8, "num_minibatches": 16})
    file = tmp_path / "mine.toml"
    file.write_text('memory = "lstm"\nnum_envs = 8\nnum_minibatches = 16\n')
    with pytest.raises(UsageError, match="not a multiple of num_minibatches=16"):
        resolve("CartPole-v1", preset="none", config_file=file)
    file.write_text("num_envs = 8\nnum_minibatches = 16\n")
    config = resolve("CartPole-v1", preset="none", config_file=file, overrides={"memory": "gru"})
    assert (config.algorithm.num_minibatches, config.origins["num_minibatches"]) == (8, "memory")
    with pytest.raises(UsageError, match="num_minibatches=0 is too small"):
        resolve("CartPole-v1", preset="none", overrides={"memory": "gru", "num_minibatches": 0})


def test_minibatches_chosen_for_a_memory_are_said(capsys):
    words = ["train", "CartPole-v1", "--memory=gru", "--num-envs=6", "--rollout-length=16"]
    assert main([*words, "--dry-run"]) == 0
    assert re.search(r"num_minibatches +3 +memory", capsys.readouterr().out)
    assert main([*words, "--total-steps=96", "--eval-episodes=1"]) == 0
    assert "note: num_minibatches=3, so that minibatches are made of whole envs" in capsys.readouterr().out
