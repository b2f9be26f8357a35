"""`surefoot theory …` as a person types it."""

import json
import subprocess
import sys

import pytest

from surefoot.cli import theory
from surefoot.cli.main import main

FAST = {
    "gae": ["--trajectories", "200"],
    "step-size": ["--updates", "20"],
    "baseline": ["--trajectories", "200"],
    "penalty": ["--updates", "5"],
}


def run(*words, code=0):
    assert main(["theory", *words]) == code


@pytest.mark.sampled(4)
@pytest.mark.parametrize("study", theory.STUDIES)
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_every_study_prints_numbers_and_draws(study, kind, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "deep" / f"a.{kind}"
    run(study, "--out", str(out), *FAST.get(study, []))
    assert out.stat().st_size > 5000
    printed = capsys.readouterr().out
    assert f"picture: {out}" in printed
    assert len(printed.splitlines()) > 4
    assert out.read_bytes()[:4] == (b"\x89PNG" if kind == "png" else b"<?xm")


@pytest.mark.parametrize("study", ["surrogate", "penalty", "baseline"])
def test_logarithmic_axes_have_plain_numbers(study, tmp_path, monkeypatch):
    mpl = pytest.importorskip("matplotlib")
    monkeypatch.setitem(mpl.rcParams, "svg.fonttype", "none")  # text stays text
    out = tmp_path / "a.svg"
    run(study, "--out", str(out), *FAST.get(study, []))
    assert "mathdefault" not in out.read_text(encoding="utf-8")


@pytest.mark.parametrize("study", theory.STUDIES)
def test_json_is_one_line_without_anything_that_is_no_json(study, capsys):
    run(study, "--json", "--out", "none", *FAST.get(study, []))
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line, parse_constant=lambda word: pytest.fail(word))
    assert found["study"] == study
    assert found["picture"] is None


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "words",
    [
        *(
            ("bound", "--world", world, "--gamma", gamma)
            for world in ("grid", "chain", "random")
            for gamma in ("0", "0.9")
        ),
        ("surrogate", "--world", "random", "--states", "30", "--actions", "5", "--seed", "9"),
        ("surrogate", "--gamma", "0"),
        ("clip", "--clip-ratio", "0.5"),
        ("step-size", "--learning-rates", "0.05", "--updates", "5", "--states", "3"),
        ("gae", "--critic-error", "0", "--trajectories", "50"),
        ("gae", "--gamma", "0", "--trajectories", "50"),
        ("baseline", "--gamma", "0", "--trajectories", "50", "--critic-error", "0"),
        ("baseline", "--reward-offset", "-2", "--states", "2", "--actions", "2", "--trajectories", "50"),
        *(("penalty", "--world", world, "--updates", "3") for world in ("cliff", "grid", "chain")),
        ("penalty", "--gamma", "0", "--target-kl", "1", "--kl-coefs", "1e-6", "1e6", "--updates", "2"),
    ],
)
def test_every_knob_turns(words, capsys):
    pytest.importorskip("matplotlib")
    run(*words, "--json")
    captured = capsys.readouterr()
    json.loads(captured.out, parse_constant=lambda word: pytest.fail(word))
    assert "picture: theory-" in captured.err


def test_the_same_seed_gives_the_same_numbers(capsys):
    seen = []
    for _ in range(2):
        run("gae", "--seed", "3", "--trajectories", "100", "--json", "--out", "none")
        seen.append(capsys.readouterr().out)
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bond"], "did you mean 'bound'"),
        (["bound", "--gamma", "1"], "gamma=1.0 is too large; it must be at most 0.999"),
        (["bound", "--world", "clif"], "did you mean 'cliff'"),
        (["bound", "--world", "grid", "--states", "2"], "a grid's side is 3 to 14"),
        (["bound", "--states", "1"], "states=1 is too small"),
        (["clip", "--epsilon", "0.1"], "here it is --clip-ratio"),
        (["clip", "--gamma", "0.9"], "--gamma is not a setting of clip; it belongs to bound"),
        (["gae", "--seeed", "1"], "did you mean '--seed'"),
        (["clip", "--out", "a.txt"], "ends in .png, .svg or .pdf, or none"),
        (["clip", "--out", "/proc/no/a.png"], "cannot be written"),
        (["step-size", "--learning-rates"], "one to five step sizes"),
    ],
)
def test_errors_say_what_to_do(words, message, capsys):
    if "cannot be written" in message:
        pytest.importorskip("matplotlib")
    run(*words, code=2)
    assert message in capsys.readouterr().err


def test_a_directory_is_no_picture(tmp_path, capsys):
    (tmp_path / "a.png").mkdir()
    run("clip", "--out", "a.png", code=2)
    assert "is a directory" in capsys.readouterr().err


def test_without_matplotlib_the_numbers_come_and_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setattr("surefoot.drawing.find_spec", lambda name: None)
    run("clip")
    assert 'pip install "surefoot[plots]"' in capsys.readouterr().out
    run("clip", "--out", "a.png", code=2)
    assert 'pip install "surefoot[plots]"' in capsys.readouterr().err


def test_help_lists_the_studies_and_their_knobs(capsys):
    run()
    shown = capsys.readouterr().out
    assert all(study in shown for study in theory.STUDIES)
    with pytest.raises(SystemExit, match="0"):
        main(["theory", "bound", "--help"])
    assert "--gamma" in capsys.readouterr().out


def test_the_command_starts_without_anything_heavy():
    code = (
        "import sys\nfrom surefoot.cli import theory\n"
        "[theory._parser(name, kind, line) for name, (kind, line) in theory.STUDIES.items()]\n"
        "heavy = {'torch', 'gymnasium', 'numpy', 'matplotlib', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "from surefoot.cli.main import main\n"
        "main(['theory', 'clip', '--out', 'none'])\n"
        "heavy = {'torch', 'gymnasium', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
