"""The reference pages, written from the code itself when the site is built: nothing in them can be out of date."""

from __future__ import annotations

import argparse
import inspect
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import surefoot
from surefoot.algorithms import ALGORITHMS
from surefoot.cli import glossary
from surefoot.cli.candidates import parser_of
from surefoot.cli.flags import format_value, metavar_of
from surefoot.cli.main import COMMANDS
from surefoot.settings import Option, title_of
from surefoot.training.config.other_libraries import ELSEWHERE
from surefoot.training.config.resolve import all_options

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FOLDER = "reference"


def cell(text: str) -> str:
    """Text in a Markdown table; what would be read as markup is escaped."""
    for mark in "\\|<*_":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


def command_line() -> str:
    """Every command with its arguments and flags."""
    lines = ["# Command line", "", "`surefoot COMMAND --help` shows the same in the terminal.", ""]
    for command, (module_name, line) in COMMANDS.items():
        run, words = _entry(module_name)
        lines += [f"## surefoot {command}", "", f"{line[0].upper()}{line[1:]}.", ""]
        for word in words:
            lines += [f"### surefoot {command} {word}", ""] if word else []
            parser = parser_of(run, (word,) if word else ())
            lines += _arguments(parser, len(words) > 1) if parser else []
    return "\n".join(lines)


def _entry(module_name: str):
    """A command's function, and the words that may follow it and have flags of their own (or one empty word)."""
    module = import_module(module_name)
    words = getattr(module, "first_words", None)
    return module.run, list(words()) if words else [""]


def _arguments(parser: argparse.ArgumentParser, with_text: bool) -> list[str]:
    lines = []
    if parser.description and with_text:
        lines += [parser.description, ""]
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        actions = [action for action in actions if action.dest != "help"]
        if actions:
            title = {"options": "flags"}.get(group.title or "", group.title or "")
            lines += [f"| {cell(title)} | |", "|---|---|"]
            lines += [f"| {_name(action)} | {cell((action.help or '').replace('%%', '%'))} |" for action in actions]
            lines += [""]
    return lines


def _name(action: argparse.Action) -> str:
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if not action.option_strings:
        return f"`{metavar}`".replace("|", "\\|")
    value = "" if action.nargs == 0 else f" {metavar}"
    return f"`{', '.join(action.option_strings)}{value}`".replace("|", "\\|")


def settings() -> str:
    """Every setting of a run: first those that all algorithms have, then each algorithm's own."""
    every = {name: all_options(name) for name in ALGORITHMS}
    lines = [
        "# Settings",
        "",
        "One name everywhere: `clip_ratio` in Python and TOML, `--clip-ratio` on the command line. Presets change",
        "many of these defaults; `surefoot train ENV --dry-run` shows the values of a run and where each comes from.",
        "",
    ]
    common = {
        name: option for name, option in every["ppo"].items() if all(option in own.values() for own in every.values())
    }
    lines += ["## Every run", "", *_groups(common)]
    for algo, own in every.items():
        mine = {name: option for name, option in own.items() if name not in common}
        lines += [f"## {algo}", "", f"[What it does](../ladder/{algo}.md).", "", *_groups(mine)]
    return "\n".join(lines)


def _groups(found: dict[str, Option]) -> list[str]:
    """Tables, one for each part of the program that owns settings."""
    by_title: dict[str, list[Option]] = {}
    for option in found.values():
        by_title.setdefault(title_of(option.owner), []).append(option)
    lines = []
    for title, mine in by_title.items():
        lines += [f"**{cell(title)}**", "", "| setting | default | meaning |", "|---|---|---|"]
        lines += [
            f"| `{one.name}` | {cell(format_value(one.default))} | {cell(one.help)} {_range(one)} |" for one in mine
        ]
        lines += [""]
    return lines


def _range(option: Option) -> str:
    low = f"≥ {option.low:.10g}" if option.low is not None else ""
    above = f"> {option.above:.10g}" if option.above is not None else ""
    high = f"≤ {option.high:.10g}" if option.high is not None else ""
    value = f"`{metavar_of(option)}`".replace("|", "\\|")
    return f"({', '.join(filter(None, (value, low, above, high)))})"


def python_api() -> str:
    """Everything that `import surefoot` offers, with its signature and docstring."""
    lines = ["# Python API", "", "[Using surefoot from Python](../python.md) shows them at work.", ""]
    for name in surefoot.__all__:
        thing = getattr(surefoot, name)
        if not callable(thing):
            continue
        kind = "class" if inspect.isclass(thing) else "def"
        lines += [f"## surefoot.{name}", "", *_signature(kind, name, thing), inspect.getdoc(thing) or "", ""]
        if kind == "class" and not issubclass(thing, Exception):
            lines += _members(thing)
    return "\n".join(lines)


def _signature(kind: str, name: str, thing: object) -> list[str]:
    try:
        signature = inspect.signature(thing)
    except ValueError:  # an exception has none
        return []
    parts = [str(parameter) for parameter in signature.parameters.values()]
    result = (
        ""
        if kind == "class" or signature.return_annotation is inspect.Signature.empty
        else f" -> {signature.return_annotation}"
    )
    flat = f"{kind} {name}({', '.join(parts)}){result}".replace("'", "")
    if len(flat) > 100:
        flat = f"{kind} {name}(\n    " + ",\n    ".join(parts).replace("'", "") + f",\n){result}".replace("'", "")
    return ["```text", flat, "```", ""]


def _members(owner: type) -> list[str]:
    lines = []
    for name, member in vars(owner).items():
        told = inspect.getdoc(member.fget if isinstance(member, property) else member)
        if name.startswith("_") or not told or not (callable(member) or isinstance(member, (property, classmethod))):
            continue
        names = [] if isinstance(member, property) else list(inspect.signature(getattr(owner, name)).parameters)
        call = "" if isinstance(member, property) else f"({', '.join(part for part in names if part != 'self')})"
        lines += [f"- `{name}{call}`: {' '.join(told.split())}"]
    return [*lines, ""]


def glossary_page() -> str:
    """The words of `surefoot explain`, in alphabetical order."""
    lines = ["# Glossary", "", "`surefoot explain WORD` shows an entry in the terminal.", ""]
    for word in sorted(glossary.WORDS, key=lambda word: word.name):
        also = f" (also: {', '.join(cell(name.replace('_', ' ')) for name in word.also)})" if word.also else ""
        lines += [f"## {word.name.replace('_', ' ')}", "", f"{word.meaning}{also}", ""]
        lines += ["```text", word.formula, "```", ""] if word.formula else []
        lines += ["See: " + ", ".join(f"`{command}`" for command in word.see), ""] if word.see else []
    return "\n".join(lines)


def other_names() -> str:
    """What other libraries call our settings."""
    lines = [
        "# Names in other libraries",
        "",
        "Stable-Baselines3 with sb3-contrib and the RL Zoo, CleanRL, rsl_rl, Tianshou and RLlib. `surefoot explain`",
        "understands these names, and so does the command line. [More about migrating](../migrate.md).",
        "",
        "| there | here | |",
        "|---|---|---|",
    ]
    for name, here in ELSEWHERE.items():
        value = "" if here.value is None else f" = {here.value}"
        lines.append(f"| `{name}` | `{here.setting}{value}` | {cell(here.note)} |")
    return "\n".join(lines)


PAGES = {
    "cli": command_line,
    "settings": settings,
    "api": python_api,
    "glossary": glossary_page,
    "names": other_names,
}


def write(folder: Path) -> None:
    """Write the pages; one that has not changed is left alone, so that it is not built again."""
    folder.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        file, text = folder / f"{name}.md", page() + "\n"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", lambda app: write(Path(app.srcdir) / FOLDER))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
