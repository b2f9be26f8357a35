"""Settings that cannot be meant: exit 2 at once, with the key, before anything is made or allocated."""

import resource
import time
from pathlib import Path

import pytest

from surefoot.cli.main import main

LINES = [
    ("lerning_rate = 1e-3", ["lerning_rate", "did you mean 'learning_rate'?"]),
    ("num_env = 4", ["num_env", "did you mean 'num_envs'?"]),
    ("[ppo]\nclip_ratio = 0.1", ["'ppo'"]),
    ("max_kl = 0.01", ["max_kl", "it belongs to", "trpo"]),
    ('learning_rate = "fast"', ["learning_rate", "'fast' is not a number"]),
    ("learning_rate = true", ["learning_rate", "True is not a number"]),
    ("learning_rate = [1e-3]", ["learning_rate", "is not a number"]),
    ("num_envs = 2.5", ["num_envs", "is not a whole number"]),
    ("normalize_observations = 1", ["normalize_observations", "is not true or false"]),
    ('normalize_observations = "perhaps"', ["normalize_observations", "is not true or false"]),
    ('hidden_sizes = ["wide"]', ["hidden_sizes", "is not a whole number"]),
    ("hidden_sizes = [0]", ["hidden_sizes", "too small"]),
    ('activation = "tahn"', ["activation", "did you mean 'tanh'?"]),
    ("env_kwargs = 5", ["env_kwargs", "is not a table"]),
    ("learning_rate = nan", ["learning_rate", "NaN"]),
    ("learning_rate = inf", ["learning_rate", "infinite"]),
    ("learning_rate = -1.0", ["learning_rate", "too small"]),
    ("gamma = 1.5", ["gamma", "too large"]),
    ("gamma = nan", ["gamma", "NaN"]),
    ("reward_scale = nan", ["reward_scale", "NaN"]),
    ("total_steps = -5", ["total_steps", "too small"]),
    ("total_steps = 0", ["total_steps", "too small"]),
    ("total_steps = nan", ["total_steps", "whole number"]),
    ("total_steps = 1e400", ["total_steps", "whole number"]),
    ("num_envs = 0", ["num_envs", "too small"]),
    ("num_envs = 1000000000", ["num_envs"]),
    ("seed = -1", ["seed", "too small"]),
    ("seed = 99999999999999999999", ["seed", "too large"]),
    ("frame_stack = 18446744073709551616", ["frame_stack", "too large"]),
    ("frame_stack = 2147483648", ["frame_stack", "too large", "at most 1024"]),
    ("num_epochs = 18446744073709551616", ["num_epochs", "too large"]),
    ("max_time = -1", ["max_time"]),
    ('max_time = "soon"', ["max_time", "not a duration"]),
    ("checkpoint_every = 0", ["checkpoint_every", "too small"]),
]


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path):
    yield
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) in ([], ["mine.toml"])


def refused(words, capsys, parts):
    begin = time.process_time()
    assert main(words) == 2
    assert time.process_time() - begin < 2.0  # nothing was built
    said = capsys.readouterr().err
    assert said.startswith("surefoot: ")
    assert "Traceback" not in said
    assert [part for part in parts if part not in said] == [], said


@pytest.mark.parametrize(("line", "parts"), LINES, ids=[line for line, _ in LINES])
def test_a_wrong_line_in_a_file_of_settings_is_named(capsys, line, parts):
    kept = {"env": '"CartPole-v1"', "algo": '"ppo"', "total_steps": "4096"}
    own = line.partition(" ")[0]
    text = "\n".join(f"{name} = {value}" for name, value in kept.items() if name != own)
    Path("mine.toml").write_text(f"{text}\n{line}\n", encoding="utf-8")
    refused(["train", "--preset=none", "--config=mine.toml"], capsys, parts)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--learning-rate=nan"], ["learning_rate", "NaN"]),
        (["--learning-rate=1e400"], ["learning_rate"]),
        (["--total-steps=-5"], ["total_steps=-5", "too small"]),
        (["--total-steps", "-1e6"], ["total_steps", "too small"]),
        (["--num-envs=1e9"], ["num_envs"]),
        (["--num-envs=1G"], ["num_envs"]),
        (["--num-envs=many"], ["num_envs", "is not a whole number"]),
        (["--rollout-length=1e12", "--total-steps=1e15"], ["GiB", "--rollout-length"]),
        (["--nmu-envs=4"], ["--nmu-envs", "did you mean '--num-envs'?"]),
    ],
    ids=lambda part: " ".join(part),
)
def test_a_wrong_flag_is_named(capsys, words, parts):
    refused(["train", "CartPole-v1", "--preset=none", *words], capsys, parts)


def with_little_memory(words):
    """In a child: the command line, with a gigabyte more than it has now."""
    used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
    return main(words)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--num-envs=1e6", "--rollout-length=1e5", "--total-steps=1e12"], "GiB"),
        (["--num-envs=1000", "--rollout-length=1e8", "--total-steps=1e12"], "GiB"),
        (["--hidden-sizes", "1e12"], "--hidden-sizes"),
        (["--hidden-sizes", "1e6", "1e6"], "--hidden-sizes"),
        (["--threads=1e9"], "threads"),
        (["--threads=1e5"], "threads"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else part,
)
def test_what_cannot_fit_is_refused_before_it_is_allocated(nursery, words, part):
    """No million envs are made, no terabyte is asked for, no thousands of threads are started to find out."""
    child = nursery.run(with_little_memory, words=["train", "CartPole-v1", "--preset=none", *words])
    child.ended(2)
    assert child.err.startswith("surefoot: ")
    assert part in child.err
