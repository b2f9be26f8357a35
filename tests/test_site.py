"""The documentation site: complete references, no warning when it is built, nothing loaded from elsewhere."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

import surefoot
from surefoot.algorithms import ALGORITHMS
from surefoot.cli import glossary
from surefoot.cli.main import COMMANDS
from surefoot.training.config.resolve import all_options

ROOT = Path(__file__).parent.parent
EXTENSIONS = ROOT / "docs" / "extensions"
LOOKED_AT = ("index", "start", "ladder/ppo", "course/05-ppo", "reference/settings", "conformance", "map", "theory")
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "video": "src", "source": "src"}


@pytest.fixture(scope="module")
def reference():
    return {name: page() for name, page in runpy.run_path(str(EXTENSIONS / "reference.py"))["PAGES"].items()}


def test_the_references_name_every_command_setting_function_and_word(reference):
    for command in COMMANDS:
        assert f"\n## surefoot {command}\n" in reference["cli"]
    for flag in ("--clip-ratio X", "--episodes N", "--world {cliff,grid,chain,random}", "--json"):
        assert f"`{flag}`" in reference["cli"]
    for algo in ALGORITHMS:
        section = reference["settings"].split(f"\n## {algo}\n")[1].split("\n## ")[0]
        common = reference["settings"].split("\n## ")[1]
        for name in all_options(algo):
            assert f"| `{name}` |" in section + common
    for name in set(surefoot.__all__) - {"__version__"}:
        assert f"\n## surefoot.{name}\n" in reference["api"]
    for word in glossary.WORDS:
        assert f"\n## {word.name.replace('_', ' ')}\n" in reference["glossary"]


def test_every_algorithm_has_a_page_with_its_own_source():
    for name, algorithm in ALGORITHMS.items():
        text = (ROOT / "docs" / "ladder" / f"{name}.md").read_text(encoding="utf-8")
        module = algorithm.__module__.rpartition(".")[2]
        assert f"```{{literalinclude}} ../../surefoot/algorithms/{module}.py" in text
        for part in ("$$", "## Pseudocode", "## What changed", "## When to use it", f"```{{scores}} {name}\n"):
            assert part in text


def test_the_scores_of_an_algorithm_have_intervals():
    table = runpy.run_path(str(EXTENSIONS / "scores.py"))["table"]
    for name in ALGORITHMS:
        rows = table(name)[2:]
        assert any(row.startswith("| CartPole-v1 | ") for row in rows)
        assert all(re.search(r"\| -?\d+\.\d \| -?\d+\.\d\sto\s-?\d+\.\d \| \d+ \| [\d,]+ \|", row) for row in rows)


def test_every_page_is_in_the_table_of_contents():
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^([\w/-]+)$", "".join(re.findall(r"```\{toctree\}(.*?)```", text, re.DOTALL)), re.M))
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} <= listed


class Page(HTMLParser):
    """What a page loads and links to."""

    def __init__(self, text):
        super().__init__()
        self.loaded, self.links, self.ids, self.inline = [], [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag in LOADED and found.get(LOADED[tag]) and found.get("rel") not in ("search", "next", "prev", "index"):
            self.loaded.append(found[LOADED[tag]])
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        self.inline.append(found.get("style") or "")


def loads_nothing_from_elsewhere(pages, out):
    for name, page in pages.items():
        for address in page.loaded:
            if address.startswith("data:video/mp4;base64,"):  # a video of the course is in the page itself
                continue
            assert not re.match(r"[a-z]+:|//", address), (name, address)
            assert (out / name.parent / address.partition("?")[0]).is_file(), (name, address)
        assert not any("url(" in style for style in page.inline)
    for style in out.rglob("*.css"):
        for address in re.findall(r"url\(([^)]*)\)|@import\s+([^;]+)", style.read_text("utf-8")):
            assert "//" not in "".join(address).replace("http://www.w3.org", "") or "data:" in address[0], (
                style,
                address,
            )


def every_link_leads_somewhere(pages, out):
    for name, page in pages.items():
        for link in page.links:
            path, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", path):
                continue
            file = Path(os.path.normpath(name.parent / path)) if path else name
            assert (out / file).is_file(), (name, link)
            assert not anchor or file not in pages or anchor in pages[file].ids, (name, link)


def formulas_and_search_are_there(out):
    assert 'class="formula"' in (out / "ladder" / "ppo.html").read_text("utf-8")
    assert list((out / "_static" / "katex" / "fonts").glob("*.woff2"))
    index = (out / "searchindex.js").read_text("utf-8")
    for word in ("advantag", "trpo", "clip_ratio", "truncat"):
        assert word in index


def pages_fit_a_browser(out):
    """On a desktop and on a phone nothing is wider than the window, every formula is drawn, nothing fails to load."""
    if shutil.which("chromedriver") is None:
        return
    from benchmarks.screenshots import chromium

    for width in (1400, 420):
        driver = chromium(width, 1000, dark=width == 420)
        try:
            for name in LOOKED_AT:
                driver.get((out / f"{name}.html").as_uri())
                wide = driver.execute_script("return document.documentElement.scrollWidth")
                assert wide <= width, (name, wide)
                assert not driver.execute_script("return document.querySelectorAll('.katex-error').length"), name
                drawn = "return [...document.querySelectorAll('.formula')].every((e) => e.querySelector('.katex'))"
                assert driver.execute_script(drawn), name
                assert not [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"], name
        finally:
            driver.quit()


def what_is_missing():
    """What the site cannot be built without, if it is not here."""
    if find_spec("myst_nb") is None:
        return "the extra docs"
    if runpy.run_path(str(EXTENSIONS / "formulas.py"))["find_katex"]() is None:
        return "KaTeX: apt-get install libjs-katex"
    return None


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_is_complete(tmp_path):
    """One test, because the build runs every chapter of the course."""
    if missing := what_is_missing():
        pytest.skip(f"not installed: {missing}")
    html = tmp_path / "html"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E", "-d", str(tmp_path / "state"), "docs"]
    built = subprocess.run([*command, str(html)], cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert built.returncode == 0, built.stderr
    pages = {page.relative_to(html): Page(page.read_text("utf-8")) for page in html.rglob("*.html")}
    assert {"index.html", "reference/settings.html", "ladder/ppo.html"} <= {page.as_posix() for page in pages}
    loads_nothing_from_elsewhere(pages, html)
    every_link_leads_somewhere(pages, html)
    formulas_and_search_are_there(html)
    pages_fit_a_browser(html)
