"""Commands whose standard streams are closed, full or without a reader: they work, and say what was lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from surefoot.cli.main import main
from surefoot.runs import RunDirectory
from surefoot.training.life.session import say
from surefoot.training.reports.streams import Outlet
from tests.faults.nursery import Nursery
from tests.faults.runs import command, opened

FULL = "/dev/full"
pytestmark = pytest.mark.skipif(not os.path.exists(FULL), reason="there is no full device here")


@pytest.fixture(scope="module")
def nursery():
    found = Nursery()
    yield found
    found.close()


def with_streams(words, closed=(), full=(), pipe=False):
    """In a child: the command line, with these descriptors closed or full, or a pipe for stdout that nobody reads."""
    names = {0: "stdin", 1: "stdout", 2: "stderr"}
    for number in closed:
        os.close(number)
        setattr(sys, names[number], None)  # as Python does when it starts
        setattr(sys, f"__{names[number]}__", None)
    for number in full:
        os.dup2(os.open(FULL, os.O_WRONLY), number)
    if pipe:
        reads, writes = os.pipe()
        os.close(reads)
        os.dup2(writes, 1)
    code = main(words)
    for number in closed:
        setattr(sys, names[number], open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (the nursery flushes it)
    sys.stdout.flush()  # as the interpreter does when it ends
    return code


SHORT = [*command("run", eval_every=None, total_steps=64)]
COMMANDS = [
    ["--help"],
    ["list", "presets"],
    ["explain", "ppo"],
    ["train", "CartPole-v1", "--dry-run"],
    SHORT,
    [*SHORT, "--json"],
]
AFTER = [
    ["list", "runs"],
    ["resume", "run"],
    ["eval", "run", "--episodes=1"],
    ["eval", "run", "--episodes=1", "--json"],
]


def each(nursery, **streams):
    """(words, how it ended) of every command."""
    for words in COMMANDS:
        if Path("run").exists():
            Path("run").rename(f"run-{len(list(Path().iterdir()))}")
        yield words, nursery.run(with_streams, words=words, **streams)
    for words in AFTER:
        yield words, nursery.run(with_streams, words=words, **streams)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=["stdin", "stdout", "stderr", "all"])
def test_every_command_works_with_closed_streams(nursery, closed):
    for words, child in each(nursery, closed=closed):
        child.ended(0)
        assert "Traceback" not in child.err, words
    assert opened(Path("run")).directory.read_status()["state"] == "done"


def test_what_is_written_to_a_closed_stream_comes_to_no_file_of_the_run(nursery):
    """The next file that is opened would get its number."""
    nursery.run(with_streams, words=SHORT, closed=(1, 2)).ended(0)
    for file in Path("run").glob("*.jsonl"):
        assert all(line.startswith("{") for line in file.read_text().splitlines())


@pytest.mark.slow
def test_a_full_stdout_is_said_and_counts_where_the_output_is_what_was_asked_for(nursery):
    for words, child in each(nursery, full=(1,)):
        trained = words[0] in ("train", "resume") and not {"--json", "--dry-run"} & set(words)
        child.ended(0 if trained else 1)
        assert "surefoot: standard output cannot be written: No space left on device" in child.err, words
        assert ("everything is saved in the run directory" in child.err) == trained
        assert "Traceback" not in child.err
        assert "Exception ignored" not in child.err
    assert opened(Path("run")).directory.read_status()["state"] == "done"


@pytest.mark.slow
def test_a_full_stderr_changes_no_exit_code(nursery):
    for _, child in each(nursery, full=(2,)):
        child.ended(0)
    nursery.run(with_streams, words=["no-such-command"], full=(2,)).ended(2)
    nursery.run(with_streams, words=["resume", "nowhere"], full=(1, 2)).ended(2)


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(nursery):
    for words, child in each(nursery, pipe=True):
        child.ended(0)
        assert "cannot be written" not in child.err, words
        assert "Traceback" not in child.err


def test_a_failed_command_keeps_its_code_on_a_full_stdout(nursery):
    child = nursery.run(with_streams, words=["eval", "nowhere"], full=(1,)).ended(2)
    assert "there is no run 'nowhere'" in child.err


@pytest.mark.slow
def test_a_real_process_with_every_stream_closed_trains(tmp_path):
    program = Path(sys.executable).with_name("surefoot")
    words = " ".join(command("run", eval_every=None, total_steps=64))
    done = subprocess.run(["sh", "-c", f"{program} {words} <&- >&- 2>&-"], timeout=60, check=False)
    assert done.returncode == 0
    assert RunDirectory(Path("run")).read_status()["state"] == "done"


class Broken:
    """Refuses after its first line."""

    def __init__(self, error):
        self.error, self.lines = error, []

    def write(self, text):
        if self.lines:
            raise self.error
        self.lines.append(text)

    def flush(self):
        pass

    def isatty(self):
        return False


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), BrokenPipeError(), ValueError("closed file")])
def test_an_outlet_never_raises_and_remembers_why_it_is_silent(error, monkeypatch):
    broken = Broken(error)
    outlet = Outlet(broken)
    for line in ("one", "two", "three"):
        print(line, file=outlet, flush=True, end="")
    assert broken.lines == ["one"]
    assert outlet.error is error
    assert outlet.isatty() is False
    monkeypatch.setattr(sys, "stdout", broken)
    say("four", to_stderr=False)
