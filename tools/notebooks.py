"""The chapters of the course as notebooks for Jupyter and Colab: `python tools/notebooks.py`.

A chapter is one text file, course/NN-name.md. Two notebooks are made from it: the chapter with its solutions, and the
student's version. In the latter, code between `# your code: hint` and `# end` becomes a hole, and answers (`<details>`)
are left out.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
COURSE = ROOT / "course"
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n((?::[^\n]*\n)*)\n?(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
HOLE = re.compile(r"^( *)# your code: ([^\n]*)\n.*?^\1# end\n", re.MULTILINE | re.DOTALL)
ANSWER = re.compile(r"<details>.*?</details>", re.DOTALL)
FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
SETUP = '# In Colab, install surefoot first: %pip install -q "surefoot[plots]" (or the path of its wheel)'


def chapters() -> list[Path]:
    return sorted(COURSE.glob("[0-9]*.md"))


def student(text: str) -> str:
    """The chapter with holes instead of solutions, and without answers."""
    return ANSWER.sub("*Write your answer here.*", HOLE.sub(_hole, text))


def _hole(found: re.Match[str]) -> str:
    indent, hint = found.groups()
    return f"{indent}# your code: {hint}\n{indent}raise NotImplementedError({hint!r})\n"


def parts(text: str) -> list[tuple[str, str]]:
    """(markdown or code, its source), in order."""
    text = FRONT.sub("", text)
    found, end = [("code", SETUP)], 0
    for cell in CELL.finditer(text):
        found += [("markdown", text[end : cell.start()]), ("code", cell.group(2))]
        end = cell.end()
    found.append(("markdown", text[end:]))
    return [(kind, source.strip("\n")) for kind, source in found if source.strip()]


def notebook(text: str) -> str:
    """The file that Jupyter and Colab open."""
    cells = []
    for number, (kind, source) in enumerate(parts(text)):
        if kind == "markdown":  # links lead to other pages of the repository, which a notebook does not have
            source = re.sub(r"\[([^\]]+)\]\((?!http)[^)]+\)", r"\1", source)
        cell = {"id": f"cell-{number}", "cell_type": kind, "metadata": {}, "source": source.splitlines(keepends=True)}
        cells.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def write(folder: Path) -> list[Path]:
    """Both notebooks of every chapter; files that have not changed are left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for chapter in chapters():
        text = chapter.read_text(encoding="utf-8")
        for name, version in ((chapter.stem, text), (f"{chapter.stem}-student", student(text))):
            file, content = folder / f"{name}.ipynb", notebook(version)
            if not file.exists() or file.read_text(encoding="utf-8") != content:
                file.write_text(content, encoding="utf-8")
            made.append(file)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the course as notebooks, with solutions and for students.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "course", help="folder [build/course]")
    for file in write(parser.parse_args().out):
        print(file)


if __name__ == "__main__":
    main()
