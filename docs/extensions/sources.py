"""Links from the pages into the repository: on the site they lead to a page that shows the file or lists the folder."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from posixpath import normpath
from urllib.parse import unquote

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.osutil import relative_uri

ROOT = Path(__file__).parents[2]
LANGUAGES = {
    ".py": "python",
    ".cpp": "cpp",
    ".hpp": "cpp",
    ".json": "json",
    ".toml": "toml",
    ".sh": "bash",
    ".js": "js",
}
LONGEST = 200_000  # characters of a file that are shown


def link_sources(app: Sphinx, doctree: nodes.document) -> None:
    """Replace each link that leads out of docs/ by one to the page of its file."""
    docname = app.env.current_document.docname
    wanted = app.env.linked_sources[docname] = set()
    for node in [*doctree.findall(addnodes.download_reference), *doctree.findall(addnodes.pending_xref)]:
        path = _outside(docname, unquote(str(node.get("reftarget", ""))).partition("#")[0])
        if path is None:
            continue
        wanted.add(path)
        uri = relative_uri(app.builder.get_target_uri(docname), app.builder.get_target_uri(page_of(path)))
        link = nodes.reference("", "", *node.children, refuri=uri, internal=True)
        node.replace_self(link)


def _outside(docname: str, target: str) -> str | None:
    """The path from the repository's root of a link that leaves docs/ for a file or folder that is there."""
    path = normpath(f"docs/{docname}/../{target}")
    inside = path == "docs" or path.startswith(("docs/", "../"))
    return None if not target or inside or not (ROOT / path).exists() else path


def page_of(path: str) -> str:
    return f"source/{path}"


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, object], str]]:
    """A page for every linked file, and for linked folders with everything inside them."""
    linked = set().union(*app.env.linked_sources.values())
    for path in sorted(linked.union(*map(_inside, linked))):
        page = page_of(path)
        yield page, {"title": path, "body": f"<h1>{escape(path)}</h1>{_body(app, page, path)}"}, "page.html"


def _inside(path: str) -> Iterator[str]:
    """Files and folders below a folder, without what is built or generated."""
    for inner in (ROOT / path).rglob("*") if (ROOT / path).is_dir() else ():
        if inner.is_dir() or inner.suffix in LANGUAGES or inner.suffix == ".md":
            name = inner.relative_to(ROOT).as_posix()
            if "__pycache__" not in name and inner.name != "build.json":
                yield name


def _body(app: Sphinx, page: str, path: str) -> str:
    file = ROOT / path
    if file.is_dir():
        here = app.builder.get_target_uri(page)
        children = sorted(child for child in _inside(path) if Path(child).parent.as_posix() == path)
        targets = {Path(child).name: app.builder.get_target_uri(page_of(child)) for child in children}
        links = [f'<li><a href="{relative_uri(here, uri)}">{name}</a></li>' for name, uri in targets.items()]
        return f"<ul>{''.join(links)}</ul>"
    text = file.read_text(encoding="utf-8")[:LONGEST]
    return app.builder.highlighter.highlight_block(text, LANGUAGES.get(file.suffix, "text"), linenos=False, force=True)


def prepare(app: Sphinx) -> None:
    if not hasattr(app.env, "linked_sources"):
        app.env.linked_sources = {}


def forget(app: Sphinx, env: object, docname: str) -> None:
    app.env.linked_sources.pop(docname, None)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", prepare)
    app.connect("env-purge-doc", forget)
    app.connect("doctree-read", link_sources, priority=100)  # before Sphinx collects the files to download
    app.connect("html-collect-pages", source_pages)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
