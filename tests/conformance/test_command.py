"""`surefoot conformance` as a command: processes that crash or hang, wrong input, exit codes, the report."""

import json
import os
import re
from pathlib import Path

import pytest

from surefoot.cli.main import main

ROOT = Path(__file__).parent.parent.parent
KL = "import numpy as np\ndef kl(old, new):\n    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (old, new))\n    return (p * np.log(p / q)).sum(-1).mean()\n"  # noqa: E501


def adapter(text):
    Path("adapter.py").write_text(text, encoding="utf-8")
    return "adapter.py"


def findings(capsys):
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    return {own["check"]: own for own in found["findings"]}, found


@pytest.mark.slow
def test_this_installation_passes_every_check(capsys):
    assert main(["conformance", "--json"]) == 0
    _, found = findings(capsys)
    assert (found["passed"], found["failed"], found["not_checked"]) == (12, 0, 0)
    assert {"surefoot", "torch"} <= set(found["versions"])


def test_a_crash_is_reported_with_its_last_line_and_the_other_checks_go_on(capsys):
    crash = (
        "import os, sys\n"
        "def advantages(*_, **__):\n"
        "    print('the last words', file=sys.stderr, flush=True)\n"
        "    os._exit(7)\n"
        "def resume(*_, **__):\n"
        '    print(\'{"answer": ["a", "a"]}\')\n'  # must not be taken for an answer
        "    raise ValueError('cannot save')\n"
        "def first_ratio(make_env, *, seed):\n"
        "    sys.exit('enough')\n"
    )
    words = ["conformance", adapter(KL + crash), "--json", "--only", "gae", "kl", "resume", "first-ratio"]
    assert main(words) == 1
    found, whole = findings(capsys)
    assert found["gae"]["means"] == "the adapter's process ended (exit code 7): the last words"
    assert found["kl"]["result"] == "passed"
    assert found["resume"]["means"] == "ValueError: cannot save (adapter.py, line 11)"
    assert found["first-ratio"]["means"] == "SystemExit: enough (adapter.py, line 13)"
    assert (whole["passed"], whole["failed"]) == (1, 3)


@pytest.mark.slow
def test_an_adapter_that_hangs_is_ended_with_the_processes_that_it_started(capsys):
    hang = (
        "import subprocess, sys, time\n"
        "def resume(make_env, folder, **_):\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"    open({os.getcwd()!r} + '/child', 'w').write(str(child.pid))\n"
        "    time.sleep(600)\n"
    )
    assert main(["conformance", adapter(KL + hang), "--json", "--timeout", "5", "--only", "resume", "kl"]) == 1
    found, _ = findings(capsys)
    assert found["resume"]["means"] == "no answer within 5 s (--timeout gives it more)"
    assert found["kl"]["result"] == "passed"
    status = Path(f"/proc/{Path('child').read_text(encoding='utf-8')}/stat")
    assert not status.exists() or status.read_text(encoding="utf-8").rpartition(")")[2].split()[0] in "ZX"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def kl(old, new)\n    return 0\n", r"adapter.py cannot be loaded: SyntaxError: .*\(adapter.py, line 1\)"),
        ("import no_such_library\n", r"ModuleNotFoundError: .*no_such_library.*--python names the Python"),
        ("def advantage():\n    pass\n", r"defines none of the functions values, .*did you mean 'advantages'"),
        ("NOTES = 3\ndef kl(a, b):\n    pass\n", r"TypeError: NOTES must be a dict"),
        ("import os\nos._exit(3)\n", r"process ended \(exit code 3\)"),
    ],
)
def test_an_adapter_that_cannot_be_used_is_wrong_input(text, said, capsys):
    assert main(["conformance", adapter(text)]) == 2
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.py"], "nowhere.py does not exist"),
        (["--only", "gea"], "unknown check 'gea'; did you mean 'gae'?"),
        (["--python", "no-such-python"], "--python no-such-python is not a program"),
        (["--timeout", "0"], "must be a positive number"),
    ],
)
def test_wrong_words(words, said, capsys):
    assert main(["conformance", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_an_adapter_may_be_called_like_the_library_that_it_imports(capsys):
    Path("json.py").write_text("raise RuntimeError\n", encoding="utf-8")
    Path("numpy.py").write_text(KL, encoding="utf-8")
    Path("beside.py").write_text("X = 1\n", encoding="utf-8")
    assert main(["conformance", "numpy.py", "--only", "kl"]) == 0
    assert main(["conformance", adapter("import beside\n" + KL), "--only", "kl"]) == 0


def test_the_page_shows_what_the_command_prints_for_the_broken_example(capsys):
    page = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    example = (ROOT / "examples" / "broken_gae.py").read_text(encoding="utf-8")
    assert f"```python\n{example}```" in page
    Path("broken_gae.py").write_text(example, encoding="utf-8")
    words = re.search(r"^surefoot (conformance broken_gae.py .*)$", page, re.MULTILINE)[1].split()
    assert main(words) == 1
    _, *lines = capsys.readouterr().out.strip().splitlines()  # the first has versions
    assert "\n".join(lines).strip() in page


def test_every_check_is_on_the_page():
    from surefoot.conformance.suite import CHECKS

    page = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    for check in CHECKS.values():
        assert f"| `{check.name}` | `{check.function}` | {check.line} |" in page
