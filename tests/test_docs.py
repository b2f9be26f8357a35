"""What the documentation says is true: commands parse, examples run, every metric has its line."""

import re
import shlex
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

import surefoot
from surefoot.algorithms import ALGORITHMS
from surefoot.analysis import columns
from surefoot.analysis.instruments import BY_NAME, instrument_of, table
from surefoot.cli.explain import explain
from surefoot.cli.main import COMMANDS, main
from surefoot.cli.theory import STUDIES
from surefoot.training.config.presets import load_preset
from tests.analysis.synthetic import make_family

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "ladder").glob("*.md")),
    *sorted((ROOT / "course").glob("*.md")),
]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def commands():
    for page in PAGES:
        for block in blocks(page, "bash"):
            for line in block.splitlines():
                if line.startswith("surefoot "):
                    yield pytest.param(
                        shlex.split(line, comments=True)[1:], id=f"{page.name}: {line.split('#')[0].strip()}"
                    )


def examples():
    for page in PAGES:
        for number, block in enumerate(blocks(page, "python")):
            marks = [pytest.mark.slow] if "surefoot.tune(" in block else []  # trains in processes of its own
            yield pytest.param(block, id=f"{page.name} {number}", marks=marks)


def test_readme_and_ci_run_the_same_test_command():
    (command,) = [line for line in (ROOT / "README.md").read_text().splitlines() if line.endswith(".venv/bin/pytest")]
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()
    assert command in (ROOT / "CONTRIBUTING.md").read_text().splitlines()


@pytest.fixture
def examples_here():
    """The docs name files of `examples/` as seen from the repository."""
    Path("examples").symlink_to(ROOT / "examples")


@pytest.mark.usefixtures("examples_here")
@pytest.mark.sampled(10)
@pytest.mark.parametrize("words", list(commands()))
def test_every_command_in_the_docs_works(words, capsys, monkeypatch):
    if words == ["sweep", "my-sweep"]:
        pytest.skip("tests/sweep/test_docs.py runs it, after the command that makes it")
    if words[:2] == ["tune", "my-tune"]:
        pytest.skip("tests/tuning/test_command.py runs it, after the command that makes it")
    if words[0] in ("train", "sweep", "tune") or words[:2] == ["compare", "--env"]:
        words = [*words, "--dry-run"]
    if words[0] == "ui":  # would serve until Ctrl-C
        monkeypatch.setattr("surefoot.dashboard.server.serve", lambda *_, **__: None)
    if words[0] == "serve":
        monkeypatch.setattr("surefoot.deploy.serve.server.serve", lambda *_, **__: None)
    if words[0] == "import-sb3":
        for name, model in (("model", "ppo-cartpole"), ("pendulum", "ppo-pendulum")):
            shutil.copy(ROOT / "tests" / "fixtures" / "sb3" / f"{model}.zip", f"{name}.zip")
        shutil.copy(ROOT / "tests" / "fixtures" / "sb3" / "ppo-pendulum-normalizer.npz", "normalizer.npz")
    if words[0] == "bench":
        words = [*("2k" if word == "100k" else word for word in words), "--rounds=1", "--seconds=0.1"]
    if words[0] in ("plot", "compare", "diagnose"):
        for env in ("CartPole-v1", "Pendulum-v1"):
            for number, algo in enumerate(("vpg", "ppo")):
                make_family(Path("runs"), algo, [10 * number + 1, 10 * number + 2], env=env)
    elif {"eval", "resume", "video", "latest"} & set(words):
        short = {"total_steps": 1024, "eval_every": 512, "selection_episodes": 1, "eval_episodes": 1}
        surefoot.train("CartPole-v1", preset="none", progress=False, **short)
        words = ["2k" if word == "200k" else word for word in words]
    assert main(words) == 0


@pytest.mark.usefixtures("examples_here")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("code", list(examples()))
def test_every_python_example_in_the_docs_runs(code, monkeypatch):
    real = surefoot.train

    def short(*args, **kwargs):
        kwargs["total_steps"] = min(kwargs.get("total_steps", 4096), 4096)
        return real(*args, **{"progress": False, "eval_episodes": 3, **kwargs})

    monkeypatch.setattr(surefoot, "train", short, raising=False)
    module = ModuleType("example")  # where types of settings are looked up
    monkeypatch.setitem(sys.modules, "example", module)
    exec(compile(code, "example", "exec"), vars(module))


def test_the_worked_example_is_the_file_that_is_tested():
    page = ROOT / "docs" / "algorithms.md"
    assert blocks(page, "python")[0] == (ROOT / "examples" / "spo.py").read_text()
    (functor,) = blocks(page, "cpp")
    assert functor in (ROOT / "surefoot" / "kernels" / "src" / "surrogates.hpp").read_text()


def test_every_metric_is_documented_and_nothing_else():
    text = (ROOT / "docs" / "metrics.md").read_text().split("`timings.jsonl`:")[0]
    documented = set(re.findall(r"^\| `([a-zA-Z0-9_/]+)`", text, re.MULTILINE)) - {"info/NAME", "entropy/N"}
    every = {"eval_every": 2048, "selection_episodes": 1}
    logged = set()
    for algo in ALGORITHMS:
        run = surefoot.train(
            "Pendulum-v1", algo, preset="none", total_steps=2048, num_envs=4, progress=False, eval_episodes=0, **every
        )
        logged |= {re.sub(r"^std/\d+$", "std/N", name) for row in run.metrics for name in row}
    assert logged == documented


def test_the_page_shows_the_table_of_instruments():
    text = (ROOT / "docs" / "metrics.md").read_text()
    assert "\n".join(table()) in text
    assert "\n".join(columns.table()) in text
    assert instrument_of("std/12") is BY_NAME["std/N"]
    assert instrument_of("info/12") is None


def test_every_page_is_linked_from_the_readme():
    text = (ROOT / "README.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f"docs/{page.name}" in text


def test_what_the_lecture_page_says_of_a_preset_is_in_it():
    assert "`reward_scale = 0.01`" in (ROOT / "docs" / "lecture.md").read_text()
    assert load_preset("homework/ppo-gae")["reward_scale"] == 0.01


def anchors(page):
    """The anchors that GitHub gives the page's headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_point_at_files_and_headings_that_exist():
    for page in PAGES:
        for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text()):
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(file), f"{page.name}: {target}#{anchor}"


def test_the_algorithms_table_of_the_readme_is_the_registry():
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert rows == list(ALGORITHMS)


def test_ci_installs_whatever_tests_are_skipped_without():
    script = (ROOT / ".ci" / "run").read_text()
    brought_by = {
        "ale_py": "atari",
        "cv2": "atari",
        "pymunk": "pettingzoo",
        "matplotlib": "dev",
        "submitit": "dev",
        "furo": "dev",
        "optuna": "dev",
    }
    tests = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    needed = {name for text in tests for name in re.findall(r'importorskip\("(\w+)"\)', text)}
    assert {"envpool", "pettingzoo"} <= needed
    installed = set(
        re.findall(
            r"\w+", " ".join(line for line in script.splitlines() if "pip install" in line or "install_with" in line)
        )
    )
    assert {brought_by.get(name, name) for name in needed} <= installed


def test_the_map_of_the_lecture_and_the_homework_leads_somewhere():
    """No row is empty; names are in the files that are linked beside them; commands and presets exist."""
    text = (ROOT / "docs" / "map.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) > 60
    assert all(place.strip() and re.search(r"`.+?`|\]\(", place) for _, place in rows if place != "here")
    pairs = re.findall(r"`(\w+)` in \[[\w.]+\]\(\.\./([\w/.]+)\)", text)
    assert len(pairs) > 30
    for name, path in pairs:
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^ *(def|class) {name}\b", source, re.MULTILINE), (name, path)
    for command in re.findall(r"`surefoot ([^`]+)`", text):
        first, *rest = command.split()
        assert first in COMMANDS, command
        if first == "explain":
            assert explain(rest[0])
        if first == "theory":
            assert rest[0] in STUDIES
        if "--preset" in rest:
            assert load_preset(rest[-1])
    for number in range(1, 16):
        assert f"| warm-up {number}:" in text
    led_to = {chapter for _, place in rows for chapter in re.findall(r"\(\.\./course/([\w-]+)\.md#", place)}
    assert led_to == {page.stem for page in (ROOT / "course").glob("[0-9]*.md")}


def test_the_page_about_the_architecture_names_what_is_there():
    """Every file, and in the table of questions every function or class in its file."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "surefoot"
    for path in re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", text):
        assert (package / path).exists() or (ROOT / path).exists(), path
    pairs = re.findall(r"`([A-Za-z_.]+)`(?: and `([A-Za-z_.]+)`)? in `([a-z_/]+\.py)`", text)
    pairs += [(name, "", path) for name, path in re.findall(r"`([A-Za-z_.]+)`\s+\(`([a-z_/]+\.py)`", text)]
    assert len(pairs) >= 30
    for first, second, path in pairs:
        source = (package / path).read_text(encoding="utf-8")
        for name in filter(None, (first, second)):
            assert re.search(rf"(def|class) {name.split('.')[-1]}\b", source), (name, path)
