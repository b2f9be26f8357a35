"""Completion in the shell: what is offered, and that real shells offer it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from surefoot.algorithms import ALGORITHMS
from surefoot.cli.candidates import propose, typed_words
from surefoot.cli.completion import SCRIPTS, answer
from surefoot.cli.flags import Parser
from surefoot.cli.main import COMMANDS, main
from surefoot.envs.ids import atari_ids, registered_ids, wrapper_names
from surefoot.training.config.resolve import all_options

OURS = """
import gymnasium
from surefoot.envs.make import known_envs
for name in known_envs():
    spec = gymnasium.spec(name)
    if spec.namespace in (None, "surefoot") and str(spec.entry_point).startswith(("gymnasium", "surefoot", "<")):
        print(name)
"""


def offered(line):
    words, current = typed_words(line)
    return list(propose(words, current).words)


@pytest.fixture
def somewhere(tmp_path):
    """A folder with an env, a config file and two runs."""
    (tmp_path / "mine.py").write_text("class MyEnv: ...\ndef make(): ...\ndef _hidden(): ...\nraise SystemExit\n")
    (tmp_path / "old.toml").write_text("")
    (tmp_path / "notes.txt").write_text("")
    for name in ("CartPole-v1/ppo/20260101-101010-s0", "CartPole-v1/ppo/20260102-101010-s1"):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        (run / "manifest.json").write_text("{}")
    return tmp_path


def test_the_commands():
    assert offered("") == list(COMMANDS)
    assert offered("tr") == ["train"]
    assert offered("-") == ["--help", "--version"]
    assert offered("nonsense ") == []


def test_a_command_for_several_runs_goes_on_offering_them(somewhere, monkeypatch):
    monkeypatch.chdir(somewhere)
    for line in ("plot ", "plot latest ", "compare latest runs/CartPole-v1 "):
        assert "latest" in offered(line)
        assert "runs/CartPole-v1/ppo/20260101-101010-s0" in offered(line)
    assert "--metric" in offered("plot latest --")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_offers_its_flags(command):
    words = ["bound"] if command == "theory" else []
    flags = propose([command, *words], "--").words
    assert "--help" in flags
    assert not Parser.describing


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_flags_are_those_of_the_algorithm(algo):
    flags = {flag.removeprefix("--").replace("-", "_") for flag in offered(f"train CartPole-v1 --algo {algo} --")}
    assert {option.name for option in all_options(algo).values() if option.flag} <= flags
    assert "algo" not in flags  # it was given


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train --algo ", list(ALGORITHMS)),
        ("train --algo=tr", ["--algo=trpo"]),
        ("train CartPole-v1 --algo trpo --max-k", ["--max-kl"]),
        ("train CartPole-v1 --algo ppo --max-k", []),
        ("train CartPole-v1 --algo nonsense --clip-ratio-s", ["--clip-ratio-schedule"]),
        ("train CartPole-v1 --memory ", ["none", "gru", "lstm"]),
        ("train CartPole-v1 --max-grad-norm ", ["none"]),
        ("train CartPole-v1 --threads ", ["auto"]),
        ("train CartPole-v1 --num-envs ", []),
        ("train CartPole-v1 --trackers wandb ", ["wandb", "mlflow"]),
        ("train CartPole-v1 --wrappers TimeL", ["TimeLimit"]),
        ("train CartPole", ["CartPole-v0", "CartPole-v1"]),
        ("train --seed 3 CartPole-v1 --dry", ["--dry-run"]),
        ("train CartPole-v1 --eval-env Acro", ["Acrobot-v1"]),
        ("train --preset lecture/", ["lecture/cartpole", "lecture/pendulum"]),
        ("train mine.py:", ["mine.py:MyEnv", "mine.py:make"]),
        ("train missing.py:", []),
        ("eval lat", ["latest"]),
        ("eval runs/CartPole-v1/ppo/20260102", ["runs/CartPole-v1/ppo/20260102-101010-s1"]),
        ("resume 202601", ["20260101-101010-s0", "20260102-101010-s1"]),
        ("eval latest --checkpoint ", ["best", "latest"]),
        ("train --like lat", ["latest"]),
        ("bench --engines torch na", ["native"]),
        ("explain ppo", ["ppo-penalty", "ppo"]),
        ("list ", ["algos", "envs", "presets", "runs"]),
        ("theory s", ["surrogate", "step-size"]),
        ("theory bound --world ", ["cliff", "grid", "chain", "random"]),
        ("completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_what_is_offered(line, expected, somewhere):
    assert offered(line) == expected


def test_files_are_left_to_the_shell(somewhere):
    def files(line):
        return propose(*typed_words(line)).files

    assert files("train --config ") == ".toml"
    assert files("train --run-dir ") == "folders"
    assert files("train mi") == files("train --callbacks ") == ".py"
    assert files("train mine.py:") == files("train --num-envs ") == "none"


def test_the_names_of_gymnasium_are_read_right():
    from gymnasium import wrappers

    done = subprocess.run(  # a process of its own: other tests register envs, too
        [sys.executable, "-c", OURS], capture_output=True, text=True, check=True
    )
    assert {*registered_ids()} == set(done.stdout.split())
    assert "TimeLimit" in wrapper_names()
    assert {*wrapper_names()} == {name for name in wrappers.__all__ if name[0].isupper()}


def test_the_games_of_atari_are_read_right():
    ale_py = pytest.importorskip("ale_py")
    import gymnasium

    gymnasium.register_envs(ale_py)
    assert {*atari_ids()} == {name for name in gymnasium.envs.registration.registry if name.startswith("ALE/")}
    assert offered("train AL") == ["ALE/"]
    assert "ALE/Pong-v5" in offered("train ALE/Po")


def test_a_name_that_is_no_text_for_a_terminal_is_not_offered(tmp_path):
    run = tmp_path / "runs" / "a\x1b[31m\nb"
    run.mkdir(parents=True)
    (run / "manifest.json").write_text("{}")
    assert offered("eval ") == ["latest"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("surefoot train ", (["surefoot", "train"], "")),
        ("surefoot train  --config my\\ fi", (["surefoot", "train", "--config"], "my fi")),
        ("surefoot train --config 'my fi", (["surefoot", "train", "--config"], "my fi")),
        ("surefoot train \"a b\" 'c d' x", (["surefoot", "train", "a b", "c d"], "x")),
        ("surefoot '' ", (["surefoot", ""], "")),
    ],
)
def test_an_unfinished_line_is_read_as_the_shell_would(line, words):
    assert typed_words(line) == words


def test_each_shell_gets_its_own_spelling(somewhere):
    assert answer("bash", (" :=", "surefoot train mine.py:M")) == ["none", "MyEnv"]  # bash breaks words at colons
    assert answer("zsh", ["train", "mine.py:M"]) == ["none", "mine.py\\:MyEnv"]
    assert answer("fish", ["train", "mine.py:M"]) == ["none", "mine.py:MyEnv"]
    assert answer("fish", ["tr"]) == ["none", "train\ttrain a policy"]
    assert answer("zsh", ["tr"]) == ["none", "train:train a policy"]
    assert answer("zsh", ["train", "--algo=tr"]) == ["none", "trpo"]


def test_an_unknown_shell(capsys):
    assert main(["completion", "bsh"]) == 2
    assert "did you mean 'bash'" in capsys.readouterr().err
    assert main(["completion"]) == 2
    assert "no shell given; for example: surefoot completion bash" in capsys.readouterr().err


def test_asking_imports_nothing_heavy(somewhere):
    code = (
        "import sys\nfrom surefoot.cli.main import main\n"
        "for line in ('', 'train ', 'train CartPole-v1 --', 'eval ', 'train --preset '):\n"
        "    main(['completion', 'candidates', 'bash', ':=', 'surefoot ' + line])\n"
        "heavy = {'torch', 'gymnasium', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


# In a real shell, with the program as a user has it: a script named surefoot.

BASH = """
eval "$(surefoot completion bash)"
complete -p surefoot
COMP_LINE="$1"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
read -r -a COMP_WORDS <<< "${1//:/ : }"
[[ $1 == *[\\ :] ]] && COMP_WORDS+=("")
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
_surefoot surefoot
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
autoload -Uz compinit && compinit -u -D
eval "$(surefoot completion zsh)"
print -r -- ${_comps[surefoot]}
_describe() { print -rl -- "${(@P)@[-1]}" }
_files() { print -r -- files "$@" }
compset() { : }
compadd() { print -rl -- "${(@P)@[-1]}" }
words=(${(z)1}); [[ $1 == *' ' ]] && words+=('')
CURRENT=$#words; PREFIX=$words[CURRENT]
_surefoot
"""
FISH = """
surefoot completion fish | source
echo defined; complete -C $argv[1]
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "surefoot").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m surefoot "$@"\n')
    (folder / "surefoot").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))


def ask(shell, line):
    command = {
        "bash": ["bash", "--norc", "-c", BASH, "bash", line],
        "zsh": ["zsh", "-f", "-c", ZSH, "zsh", line],
        "fish": ["fish", "--no-config", "-c", FISH, line],
    }[shell]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.stderr
    first, *lines = done.stdout.splitlines()
    assert first in ("complete -F _surefoot surefoot", "_surefoot", "defined")
    return [found.split("\t")[0] for found in lines]


@pytest.mark.slow
@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_real_shell_completes(shell, program, somewhere):
    if shutil.which(shell) is None:
        assert shell != "bash", "the tests of completion need bash"
        pytest.skip(f"no {shell} here")
    help = "" if shell != "zsh" else ":train a policy"
    assert ask(shell, "surefoot tr") == [f"train{help}"]
    assert ask(shell, "surefoot train --algo tr") == ["trpo"]
    found = ask(shell, "surefoot train mine.py:")
    assert {word.replace("\\", "").removeprefix("mine.py:") for word in found} == {"MyEnv", "make"}
    listed = " ".join(ask(shell, "surefoot train --config "))
    assert "old.toml" in listed or "files -g *.toml" in listed
    assert "runs" in listed or shell == "zsh"


def test_bash_offers_files_of_the_right_kind_and_folders(program, somewhere):
    assert set(ask("bash", "surefoot train --config ")) == {"old.toml", "runs", "bin"}
    assert ask("bash", "surefoot train mi") == ["mine.py"]
    assert ask("bash", "surefoot train CartPole-v1 --num-envs ") == [""]


def test_the_help_says_how_to_switch_it_on():
    page = Path(__file__).parents[2] / "docs" / "runs.md"
    for line in ('eval "$(surefoot completion bash)"', 'eval "$(surefoot completion zsh)"'):
        assert line in page.read_text()
