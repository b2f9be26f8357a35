"""The chapters as notebooks: one source, a version with holes, and no cell that fails."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import surefoot
from surefoot.course import EXERCISES, Wrong
from tests.test_site import what_is_missing

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "course").exists(), reason="not a checkout")
CHAPTERS = sorted((ROOT / "course").glob("[0-9]*.md"))


@pytest.fixture(scope="module")
def tool():
    return runpy.run_path(str(ROOT / "tools" / "notebooks.py"))


def text_of(chapter):
    return chapter.read_text(encoding="utf-8")


def code_of(tool, text):
    return [source for kind, source in tool["parts"](text) if kind == "code"]


def test_there_are_seven_chapters_and_the_contents_list_them():
    assert [chapter.name[:2] for chapter in CHAPTERS] == [f"{number:02}" for number in range(1, 8)]
    contents, index = text_of(ROOT / "course" / "README.md"), text_of(ROOT / "docs" / "index.md")
    for chapter in CHAPTERS:
        title = re.search(r"^# \d\. (.+)$", text_of(chapter), re.MULTILINE).group(1)
        assert f"[{title}]({chapter.name})" in contents
        assert f"\ncourse/{chapter.stem}\n" in index


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_student_finds_holes_where_the_solutions_are(tool, chapter):
    text = text_of(chapter)
    holes = re.findall(r"^ *# your code: (.+)$", text, re.MULTILINE)
    assert holes
    assert len(holes) == len(re.findall(r"^ *# end$", text, re.MULTILINE)) == len(tool["HOLE"].findall(text))
    student = tool["student"](text)
    assert "<details>" in text
    assert "<details>" not in student
    assert "# end\n" not in student
    for hint in holes:
        assert f"raise NotImplementedError({hint!r})" in student
    for cell in code_of(tool, student):
        python = "\n".join(line for line in cell.splitlines() if not line.startswith(("%", "!")))
        compile(python, chapter.name, "exec")
    for solution in re.findall(r"# your code: [^\n]*\n(.*?)\n *# end$", text, re.MULTILINE | re.DOTALL):
        assert solution not in student


def test_the_chapters_ask_for_every_exercise_there_is():
    asked = {
        name for chapter in CHAPTERS for name in re.findall(r'^check\("(\w+)", \1\)$', text_of(chapter), re.MULTILINE)
    }
    assert asked == set(EXERCISES)


def test_the_notebooks_are_notebooks(tool, tmp_path):
    made = tool["write"](tmp_path)
    assert len(made) == 14
    for file in made:
        notebook = json.loads(file.read_text(encoding="utf-8"))
        assert notebook["nbformat"] == 4
        cells = notebook["cells"]
        assert {cell["cell_type"] for cell in cells} == {"code", "markdown"}
        assert len({cell["id"] for cell in cells}) == len(cells)
        whole = "".join("".join(cell["source"]) for cell in cells)
        assert "{code-cell}" not in whole
        assert not re.search(r"\]\((?!http)", whole)  # a notebook has no pages beside it
    before = [file.stat().st_mtime_ns for file in made]
    assert [file.stat().st_mtime_ns for file in tool["write"](tmp_path)] == before


def test_the_algorithm_of_chapter_7_is_the_example():
    text = text_of(ROOT / "course" / "07-your-own.md")
    cell = re.search(r"^%%writefile dual_clip\.py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL).group(1)
    plain = re.sub(r"^ *# (your code: .*|end)\n", "", cell, flags=re.MULTILINE)
    assert plain == text_of(ROOT / "examples" / "dual_clip.py")


def carry_out(source, names):
    """What IPython would do with a cell, as far as the chapters use it."""
    first, _, rest = source.partition("\n")
    if first.startswith("%%writefile "):
        Path(first.split()[1]).write_text(rest + "\n", encoding="utf-8")
    elif first.startswith("!"):
        command = first[1:].replace("{sys.executable}", sys.executable)
        subprocess.run(command, shell=True, check=True, capture_output=True, timeout=600)
    else:
        exec(compile(source, "cell", "exec"), names)


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_runs_from_top_to_bottom(tool, chapter, monkeypatch):
    """With short runs; at full length the chapters run when the site is built."""
    if what_is_missing() is None:
        pytest.skip("tests/test_site.py runs the chapters")
    real = surefoot.train

    def short(*args, **given):
        most = 40_000 if "homework" in str(given.get("preset")) else 8192
        return real(*args, **{**given, "total_steps": min(given.get("total_steps", most), most), "eval_episodes": 2})

    monkeypatch.setattr(surefoot, "train", short, raising=False)
    module = ModuleType("chapter")  # where the types of settings are looked up
    monkeypatch.setitem(sys.modules, "chapter", module)
    for source in code_of(tool, text_of(chapter)):
        carry_out(source, vars(module))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_student_who_has_not_begun_is_told_so(tool, chapter):
    """The first check of every chapter meets a hole."""
    names = {}

    def begin():
        for source in code_of(tool, tool["student"](text_of(chapter))):
            carry_out(source, names)

    with pytest.raises(Wrong, match="hole"):
        begin()
