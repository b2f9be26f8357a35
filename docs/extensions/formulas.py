"""Formulas drawn by KaTeX from files beside the pages: the site loads nothing from elsewhere.

KaTeX (script, style and fonts) is copied when the site is built, from Debian's package `libjs-katex` or from the folder
that the environment variable KATEX names: the `dist` folder of any KaTeX release.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

DEBIAN = "/usr/share/javascript/katex"


def find_katex() -> Path | None:
    """The folder with KaTeX's script, style and fonts; None if this machine has none."""
    folder = Path(os.environ.get("KATEX", DEBIAN))
    whole = all((folder / name).exists() for name in ("katex.min.js", "katex.min.css", "fonts"))
    return folder if whole else None


def copy_katex(app: Sphinx) -> None:
    folder = find_katex()
    if folder is None:
        raise ExtensionError(
            "the formulas need KaTeX, which is not here: `apt-get install libjs-katex`, or set KATEX to the dist "
            "folder of a KaTeX release"
        )
    target = Path(app.outdir) / "_static" / "katex"
    (target / "fonts").mkdir(parents=True, exist_ok=True)
    for name in ("katex.min.js", "katex.min.css"):
        shutil.copyfile(folder / name, target / name)
    for font in (folder / "fonts").iterdir():
        shutil.copyfile(font, target / "fonts" / font.name)


def visit_inline(self, node: nodes.math) -> None:
    self.body.append(f'<span class="formula">{self.encode(node.astext())}</span>')
    raise nodes.SkipNode


def visit_block(self, node: nodes.math_block) -> None:
    self.body.append(f'<div class="formula">{self.encode(node.astext())}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("katex", (visit_inline, None), (visit_block, None))
    app.connect("builder-inited", copy_katex)
    app.add_css_file("katex/katex.min.css")
    app.add_js_file("katex/katex.min.js", loading_method="defer")
    app.add_js_file("formulas.js", loading_method="defer")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
