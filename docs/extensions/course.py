"""The chapters of course/ as pages of the site, with notebooks to download.

They are copied into docs/course/ when the site is built, since Sphinx reads one folder; links are moved along.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
FOLDER = "course"
DOWNLOADS = """
*Do it yourself:* {{download}}`the student's notebook <notebooks/{stem}-student.ipynb>`, with holes and graders ·
{{download}}`the notebook with solutions <notebooks/{stem}.ipynb>`
"""


def moved(text: str) -> str:
    """Links of a file in course/, as they are from docs/course/."""
    return re.sub(r"\]\(\.\./(?:(docs/)?)", lambda found: "](../" if found.group(1) else "](../../", text)


def write(docs: Path) -> None:
    """Copy the chapters; one that has not changed is left alone, so that it is not executed again."""
    tool = runpy.run_path(str(ROOT / "tools" / "notebooks.py"))
    folder = docs / FOLDER
    tool["write"](folder / "notebooks")
    for source in [ROOT / "course" / "README.md", *tool["chapters"]()]:
        text = moved(source.read_text(encoding="utf-8"))
        if source.stem != "README":
            title, _, rest = text.partition("\n\n## ")
            text = f"{title}\n{DOWNLOADS.format(stem=source.stem)}\n## {rest}"
        file = folder / source.name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def into_the_site(app: Sphinx, docname: str, source: list[str]) -> None:
    """In the repository the other pages link to ../course/; on the site the chapters are among them."""
    if not docname.startswith(f"{FOLDER}/"):
        source[0] = source[0].replace("](../course/", f"]({FOLDER}/").replace("](../../course/", f"](../{FOLDER}/")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", lambda app: write(Path(app.srcdir)))
    app.connect("source-read", into_the_site)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
