"""What a person sees on terminals of several widths: every number whole, colour only where it is wanted."""

import re
import sys

import pytest

import surefoot
from surefoot.cli.main import main
from surefoot.training.reports.progress import LineProgress, LiveProgress, make_progress
from surefoot.training.reports.screen import fit, join, pack, width_of, wrap
from tests.cli.terminal import COLOUR, Screen, terminal

SHORT = ["--preset", "none", "--total-steps", "2k", "--num-envs", "4", "--rollout-length", "64", "--eval-episodes", "3"]
PATHS = (
    "run ",
    "run:",
    "curves:",
    "browser:",
    "next:",
    "recommended:",
)  # to copy: only the terminal breaks them


def show(monkeypatch, columns, *words, **env):
    with terminal(monkeypatch, columns) as seen:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        assert main(list(words)) == 0
    return seen[0], Screen(columns).feed(seen[0])


def cut(screen):
    """Lines that the terminal had to break, apart from those to copy from and words that are longer than a line."""
    return [line for line in screen.broken if not line.startswith(PATHS) and " " in line.strip()]


@pytest.fixture
def run_here():
    return surefoot.train(
        "CartPole-v1", preset="none", total_steps=1024, seed=1, eval_episodes=3, eval_every=512, progress=False
    )


@pytest.mark.parametrize("columns", [50, 80])
def test_the_live_table_cuts_no_number(monkeypatch, columns):
    raw, screen = show(monkeypatch, columns, "train", "CartPole-v1", *SHORT, "--seed", "1")
    assert "\x1b[2K" in raw  # it is redrawn in place
    assert not cut(screen)
    text = " ".join(screen.text.split())
    assert re.search(r"steps 1,\d{3} of 2,000 ", text), text
    for metric in (r"KL \d\.\d{4} ", r"clipped \d+% ", r"entropy \d\.\d\d ", r"expl\. var\. -?\d+\.\d\d "):
        assert re.search(metric, text), metric
    assert "…" not in text


def test_the_last_table_shows_the_last_update(monkeypatch):
    """The table is drawn eight times a second; a short run has many updates between two drawings."""
    words = ["train", "CartPole-v1", *SHORT, "--seed", "1", "--log-every", "256", "--run-dir", "here"]
    _, screen = show(monkeypatch, 80, *words)
    row, text = surefoot.Run("here").metrics[-1], " ".join(screen.text.split())
    assert f"update {row['update']} KL {row['kl']:.4f}" in text
    assert f"entropy {row['entropy']:.2f} expl. var. {row['explained_variance']:.2f}" in text


def test_no_color_takes_the_colours_and_leaves_the_table(monkeypatch):
    coloured, _ = show(monkeypatch, 80, "train", "CartPole-v1", *SHORT)
    plain, screen = show(monkeypatch, 80, "train", "CartPole-v1", *SHORT, NO_COLOR="1")
    assert COLOUR.search(coloured)
    assert not COLOUR.search(plain)
    assert "\x1b[2K" in plain
    assert re.search(r"update +\d+ +KL", screen.text)


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        ({}, LiveProgress),
        ({"NO_COLOR": "1"}, LiveProgress),
        ({"FORCE_COLOR": "1"}, LiveProgress),
        ({"FORCE_COLOR": ""}, LiveProgress),
        ({"CI": "true"}, LineProgress),
        ({"CI": ""}, LiveProgress),
        ({"CI": "false"}, LiveProgress),
        ({"TERM": "dumb"}, LineProgress),
    ],
)
def test_what_the_environment_asks_for(monkeypatch, env, kind):
    with terminal(monkeypatch, 80):
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        progress = make_progress(enabled=True, to_stderr=False)
    assert type(progress) is kind


def test_a_pipe_gets_plain_lines_whatever_is_forced(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["train", "CartPole-v1", *SHORT]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("columns", [50, 80])
def test_plain_lines_break_between_numbers(monkeypatch, columns):
    raw, screen = show(monkeypatch, columns, "train", "CartPole-v1", *SHORT, TERM="dumb")
    assert "\x1b" not in raw
    assert not cut(screen)
    assert re.search(r"entropy \d\.\d\d", screen.text)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "words",
    [
        ["list", "algos"],
        ["list", "presets"],
        ["train", "Pendulum-v1", "--dry-run"],
        ["doctor", "CartPole-v1", "--episodes", "3"],
        ["theory", "bound", "--out", "none"],
        ["explain", "trpo"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_no_command_has_its_numbers_cut(monkeypatch, words):
    for columns in (50, 80):
        assert not cut(show(monkeypatch, columns, *words)[1])


def test_nor_has_what_a_run_is_found_to_reach(monkeypatch, run_here):
    for columns in (50, 80):
        assert not cut(show(monkeypatch, columns, "list", "runs")[1])
        assert not cut(show(monkeypatch, columns, "eval", "latest", "--episodes", "3")[1])


@pytest.mark.slow
def test_nor_has_a_bench(monkeypatch):
    monkeypatch.setattr("surefoot.bench.measure.WARM_UP", 0.01)
    _, screen = show(monkeypatch, 50, "bench", "--rounds", "1", "--seconds", "0.05")
    assert not cut(screen)
    assert re.search(r"µs per update [\d,]+ ", screen.text)
    wide = show(monkeypatch, 120, "bench", "--rounds", "1", "--seconds", "0.05")[1]
    assert "| engine | steps/s, median (range) | µs per update |" in wide.text


def test_a_list_too_wide_for_the_terminal_has_a_paragraph_for_each_row(monkeypatch, run_here):
    _, wide = show(monkeypatch, 160, "list", "runs")
    _, narrow = show(monkeypatch, 50, "list", "runs")
    values = wide.text.splitlines()[1].split()
    assert set(values) <= set(narrow.text.split())
    assert f"steps {run_here.result['total_steps']:,}" in narrow.text


def test_lines_of_a_pipe_stay_whole(capsys):
    assert width_of(sys.stdout) is None
    assert fit("word " * 100) == "word " * 100
    assert join(["cell"] * 50, sys.stdout) == "  ".join(["cell"] * 50)


@pytest.mark.parametrize("width", range(20, 60))
def test_lines_break_at_spaces_only(width):
    line = "  reward per step        1.234 ± 0.567, 12,345 to 98,765, non-zero in 100.0% of steps"
    broken = wrap(line, width)
    assert all(len(part) <= width for part in broken)
    assert " ".join(broken).split() == line.split()


def test_cells_are_packed_in_order():
    assert pack([4, 4, 4, 9, 1], 10, 2) == [[0, 1], [2], [3], [4]]
    assert pack([30], 10, 2) == [[0]]
