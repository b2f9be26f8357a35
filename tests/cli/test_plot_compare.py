"""`surefoot plot` and `surefoot compare` as a person types them."""

import io
import json
import re
import resource
from html.parser import HTMLParser
from pathlib import Path

import pytest

from surefoot.analysis.wording import number
from surefoot.cli.main import main
from surefoot.training.reports.screen import wrap
from tests.analysis.synthetic import make_family, make_run


@pytest.fixture
def runs(tmp_path):
    root = tmp_path / "runs"
    make_family(root, "reinforce", [20, 40, 30])
    make_family(root, "vpg", [50, 60, 70])
    make_family(root, "ppo", [100, 110, 90, 95, 105])
    return root


@pytest.mark.usefixtures("runs")
def test_three_algorithms_on_the_same_axes_in_one_command(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main(["plot", "CartPole-v1", "--out", "curves/all.png"]) == 0
    assert capsys.readouterr().out == "picture: curves/all.png\n"
    assert (tmp_path / "curves" / "all.png").read_bytes().startswith(b"\x89PNG")
    assert main(["plot", "CartPole-v1", "--out", "a.svg", "--x", "time", "--smooth", "3", "--line", "mean"]) == 0
    assert "<svg" in (tmp_path / "a.svg").read_text()


@pytest.mark.usefixtures("runs")
def test_a_picture_that_does_not_fit_on_the_disk_leaves_the_last_one_and_nothing_else(capsys):
    pytest.importorskip("matplotlib")
    folder = Path("pictures")
    folder.mkdir()
    (folder / "a.png").write_bytes(b"the last one")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        assert main(["plot", "CartPole-v1", "--out", "pictures/a.png"]) == 2
        assert main(["theory", "baseline", "--trajectories", "200", "--out", "pictures/b.svg"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    err = capsys.readouterr().err
    assert "the picture cannot be written to pictures/a.png: File too large" in err
    assert "the picture cannot be written to pictures/b.svg: File too large" in err
    assert [file.name for file in folder.iterdir()] == ["a.png"]
    assert (folder / "a.png").read_bytes() == b"the last one"


@pytest.mark.usefixtures("runs")
def test_a_panel_per_env_and_the_file_is_named_after_the_metric(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    make_family(tmp_path / "runs", "ppo", [1, 2], env="Pendulum-v1")
    assert main(["plot", "runs", "--metric", "kl", "--band", "none"]) == 0
    assert capsys.readouterr().out == "picture: kl.png\n"
    assert (tmp_path / "kl.png").exists()


@pytest.mark.usefixtures("runs")
def test_in_the_terminal_without_matplotlib(monkeypatch, capsys):
    monkeypatch.setattr("surefoot.drawing.find_spec", lambda name: None)
    assert main(["plot", "CartPole-v1"]) == 0
    out = capsys.readouterr().out
    assert "ppo: ends at 100, 5 runs" in out
    assert 'pip install "surefoot[plots]"' in out
    assert main(["plot", "CartPole-v1", "--terminal"]) == 0
    assert "pip install" not in capsys.readouterr().out
    assert main(["plot", "CartPole-v1", "--out", "x.png"]) == 2
    assert 'needs matplotlib: pip install "surefoot[plots]"' in capsys.readouterr().err
    assert main(["compare", "CartPole-v1", "--out", "x.html"]) == 2


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.mark.parametrize("colour", [True, False])
@pytest.mark.usefixtures("runs")
def test_colours_on_a_terminal_and_none_with_no_color(colour, monkeypatch):
    out = Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    assert main(["plot", "CartPole-v1", "--terminal"]) == 0
    assert ("\x1b[3" in out.getvalue()) == colour
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert max(map(len, plain.splitlines())) <= 60


@pytest.mark.usefixtures("runs")
def test_the_metrics_that_there_are(capsys):
    assert main(["plot", "CartPole-v1", "--list-metrics"]) == 0
    assert capsys.readouterr().out.split() == ["step", "seconds", "update", "episode_return", "kl"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plot", "nowhere"], "there is no run 'nowhere'"),
        (["plot", "x" * 5000], "there is no run 'xxx"),
        (["compare", "a\0b"], "there is no run 'a"),
        (["plot", "CartPole-v1", "--metric", "klx"], "did you mean 'kl'?"),
        (["plot", "CartPole-v1", "--out", "a.jpg"], "ends in .png, .svg or .pdf"),
        (["plot", "CartPole-v1", "--terminal", "--out", "a.png"], "give one of them"),
        (["plot", "CartPole-v1", "--smooth", "0"], "at least 1"),
        (["plot", "CartPole-v1", "--smooth", "x"], "smooth"),
        (["compare", "CartPole-v1", "--out", "a.png"], "--plot"),
        (["compare", "CartPole-v1", "--at-step", "0"], "at least 1"),
        (["compare", "CartPole-v1", "--reference", "500"], "write ENV=VALUE"),
        (["compare", "CartPole-v1", "--reference", "CartPole-v1=500"], "two scores"),
        (["compare", "CartPole-v1", "--reference", "CartPole-v1=5:1"], "the lower one"),
        (["compare", "CartPole-v1", "--threshold", "CartPole-v1=nan"], "not a finite number"),
        (["compare", "CartPole-v1", "--threshold", "Cartpole-v1=3"], "did you mean 'CartPole-v1'?"),
        (["compare", "CartPole-v1", "--metirc", "kl"], "did you mean '--metric'?"),
    ],
)
@pytest.mark.usefixtures("runs")
def test_bad_input_has_an_answer(words, said, capsys):
    assert main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["plot", "compare"])
def test_no_runs_here(command, capsys):
    assert main([command]) == 2
    assert "train one: surefoot train CartPole-v1" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("runs")
def test_a_comparison_in_the_terminal_and_as_files(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main(["compare", "--csv", "t.csv", "--plot", "p.svg", "--out", "r.html", "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out.splitlines()[-1])
    assert [row["name"] for row in found["tables"][0]["summaries"]] == ["ppo", "vpg", "reinforce"]
    assert "ppo is better than vpg" in said.err
    # Nine tenths of the way from 7, the median of the first rows, to 80, the mean of 60, 70, … 100.
    assert "steps to 72.7" in said.err
    assert (tmp_path / "t.csv").read_text().count("\n") == 4
    assert "<svg" in (tmp_path / "p.svg").read_text()
    assert "<table>" in (tmp_path / "r.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("runs")
def test_a_narrow_terminal_gets_paragraphs(monkeypatch):
    out = Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setenv("COLUMNS", "50")
    assert main(["compare", "CartPole-v1"]) == 0
    assert max(map(len, out.getvalue().splitlines())) <= 50


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen, self.attributes, self.text = set(), set(), []

    def handle_starttag(self, tag, attributes):
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attributes}

    def handle_data(self, data):
        self.text.append(data)


def test_the_report_holds_no_script_and_loads_nothing_whatever_a_run_is_called(tmp_path):
    pytest.importorskip("matplotlib")
    odd = "<script>alert(1)</script>$\\frac"
    make_family(tmp_path / "runs", "ppo", [1, 2])
    for seed in (0, 1):
        make_run(tmp_path / "runs" / f"odd{seed}", env=odd, algo='"><img src=x onerror=y>', seed=seed, final=seed)
    assert main(["compare", "runs", "--out", "r.html"]) == 0
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(text)
    assert not tags.seen & {"script", "img", "iframe", "link", "object", "embed"}
    assert not {name for name in tags.attributes if name.startswith("on")}
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:|//|data:)""", text)
    assert odd in "".join(tags.text)
    assert "default-src 'none'" in text


@pytest.mark.slow
def test_runs_that_were_trained(capsys):
    import surefoot

    for algo in ("vpg", "ppo"):
        for seed in (0, 1):
            surefoot.train(
                "CartPole-v1", algo, preset="none", seed=seed, total_steps=2048, eval_episodes=2, progress=False
            )
    assert main(["plot", "CartPole-v1", "--terminal", "--x", "time"]) == 0
    assert main(["compare", "CartPole-v1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {row["name"]: row["runs"] for row in found["tables"][0]["summaries"]} == {"vpg": 2, "ppo": 2}


def test_runs_of_an_earlier_version(capsys):
    old = Path(__file__).parent.parent / "fixtures" / "runs-0.1.0"
    assert main(["plot", str(old / "ppo-cartpole"), "--terminal", "--metric", "eval_return"]) == 0
    assert main(["compare", str(old / "ppo-cartpole"), str(old / "a2c"), "--metric", "episode_return"]) == 0
    assert "one seed only" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [130, 80, 40])
@pytest.mark.usefixtures("runs")
def test_a_narrow_terminal_gets_the_columns_that_matter(columns, monkeypatch):
    out = Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["compare", "CartPole-v1"]) == 0
    said = out.getvalue()
    assert ("mean [95 %]" in said) == (columns != 80)
    assert ("do not fit this terminal" in said) == (columns == 80)
    assert max(map(len, said.splitlines())) <= columns
    assert bool(re.search(r"^ppo +5 +100\.0 \[", said, re.MULTILINE)) == (columns >= 80)  # a row of a table


@pytest.mark.usefixtures("runs")
def test_small_numbers_are_not_shown_as_zero(capsys):
    assert main(["compare", "CartPole-v1/ppo", "--metric", "kl"]) == 0
    assert "0.01" in capsys.readouterr().out
    assert [number(x) for x in (0.0, 0.0032, -0.00032, 0.25, 123.4)] == ["0.00", "0.0032", "-0.00032", "0.25", "123.4"]


@pytest.mark.usefixtures("runs")
def test_a_part_of_a_name_is_understood(capsys):
    for words, meant in (
        (["plot", "ppo"], "did you mean 'CartPole-v1/ppo'?"),
        (["plot", "CartPole-v1", "--metric", "retrun"], "did you mean 'episode_return'?"),
        (["compare", "--metric", "nothing"], "(`surefoot plot --list-metrics` shows them)"),
        (["replay", "vpg", "--update", "1"], "did you mean 'CartPole-v1/vpg/s0'?"),
        (["diff", "latest"], "no second run given; for example: surefoot diff latest RUN"),
    ):
        assert main(words) == 2
        assert meant in capsys.readouterr().err


def test_without_runs_it_says_how_to_get_some(capsys):
    assert main(["compare"]) == 2
    assert "there are no runs below runs/; train one: surefoot train CartPole-v1" in capsys.readouterr().err


def test_one_seed_gets_the_command_for_another(tmp_path, capsys):
    make_run(tmp_path / "runs" / "my run", seed=3)
    assert main(["compare"]) == 0
    assert "surefoot train --like 'runs/my run' --seed 4" in capsys.readouterr().out


def test_a_value_beside_its_name_goes_on_in_its_column():
    line = "advantage      " + "min 1, median 2, max 3, " * 4
    assert {part[:15].strip() for part in wrap(line, 60)[1:]} == {""}
    assert all(len(part) <= 60 and part[15] != " " for part in wrap(line, 60))
    assert wrap(line, 40)[1].startswith("    m")  # no room


@pytest.mark.slow
def test_several_envs_have_curves_over_all_of_them(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    for env in ("CartPole-v1", "Pendulum-v1"):
        make_family(tmp_path / "runs", "ppo", [-20, -10], env=env)
    assert main(["compare", "--plot", "p.svg", "--out", "r.html", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["together"]["env"] == "all envs"
    assert "Learning curves over all envs" in (tmp_path / "r.html").read_text()
    assert (tmp_path / "p.svg").exists()


def test_numbers_that_overflow_are_no_warnings_and_fill_no_screen(tmp_path, capsys):
    make_family(tmp_path / "runs", "ppo", [1e308, 1.5e308, 1e308])
    make_family(tmp_path / "runs", "vpg", [-1e308, 3.0, 1e12])
    assert main(["compare"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert max(map(len, said.out.splitlines())) < 300
    assert main(["compare", "--metric", "episode_return"]) == 0
    assert main(["plot", "--terminal"]) == 0
