"""Completions for the words typed so far, from the commands' own parsers. Imports neither torch nor Gymnasium."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module

from surefoot.cli.flags import Described, Parser
from surefoot.cli.main import COMMANDS
from surefoot.errors import SurefootError, user_errors

COMMON = {"--help": "show all commands", "--version": "show the version"}


@dataclass
class Candidates:
    """Words with a line of help each, and which files the shell should offer as well."""

    words: dict[str, str] = field(default_factory=dict)
    files: str = "none"  # or any, folders, or how their names end (.py)

    def starting(self, prefix: str) -> Candidates:
        """Only words that match and are safe to show on a terminal."""
        fitting = {word: help for word, help in self.words.items() if word.startswith(prefix) and word.isprintable()}
        return Candidates(fitting, self.files)


def propose(words: Sequence[str], current: str) -> Candidates:
    """Completions of the word `current` after `words` (without `surefoot` itself)."""
    if not words:
        return Candidates(COMMON if current.startswith("-") else _commands()).starting(current)
    command, *rest = words
    if command not in COMMANDS:
        return Candidates()
    module = import_module(COMMANDS[command][0])
    if hasattr(module, "first_words") and not rest:
        return Candidates(module.first_words()).starting(current)
    parser = parser_of(module.run, rest)
    return _next(parser, rest, current) if parser is not None else Candidates()


def parser_of(run: Callable[[Sequence[str]], int], words: Sequence[str]) -> Parser | None:
    """The parser that a command makes for these words: it is run up to the point where it would parse them."""
    Parser.describing = True
    try:
        for known in (words, words[:-1], ()):  # the last word may be a flag without its value
            try:
                run(known)
            except Described as found:
                return found.parser
            except SurefootError:
                continue
        return None
    finally:
        Parser.describing = False


def _commands() -> dict[str, str]:
    return {name: line for name, (_, line) in COMMANDS.items()}


def _next(parser: Parser, words: Sequence[str], current: str) -> Candidates:
    flag, equals, part = current.partition("=")
    if flag.startswith("--") and equals:
        action = parser._option_string_actions.get(flag)
        if action is None or action.nargs == 0:
            return Candidates()
        found = _values(parser, action, part).starting(part)
        return Candidates({f"{flag}={word}": help for word, help in found.words.items()}, found.files)
    pending, positionals, used = _read(parser, words)
    if pending is not None and not current.startswith("--"):
        found = _values(parser, pending, current).starting(current)
        if pending.nargs not in ("*", "+") or found.words or found.files != "none":
            return found
    if positionals and not current.startswith("-"):
        return _values(parser, positionals[0], current).starting(current)
    return Candidates(_flags(parser, used)).starting(current)


def _read(parser: Parser, words: Sequence[str]) -> tuple[argparse.Action | None, list[argparse.Action], set[str]]:
    """After `words`: the flag whose value comes next, the missing positional arguments, and the flags used."""
    positionals = [action for action in parser._actions if not action.option_strings]
    pending: argparse.Action | None = None
    used: set[str] = set()
    for word in words:
        flag, equals, _ = word.partition("=")
        action = parser._option_string_actions.get(flag)
        if action is not None:
            used.update(action.option_strings)
            pending = action if action.nargs != 0 and not equals else None
        elif pending is not None:
            pending = pending if pending.nargs in ("*", "+") else None
        elif positionals and not word.startswith("-") and positionals[0].nargs not in ("*", "+"):
            positionals.pop(0)
    return pending, positionals, used


def _flags(parser: Parser, used: Iterable[str]) -> dict[str, str]:
    return {
        flag: " ".join((action.help or "").replace("%%", "%").split())
        for action in parser._actions
        for flag in action.option_strings
        if flag.startswith("--") and flag not in used
    }


def _values(parser: Parser, action: argparse.Action, current: str) -> Candidates:
    """Completions of an argument by its metavar: choices in braces, and names that stand for a kind."""
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.choices is not None:
        metavar = "{" + ",".join(map(str, action.choices)) + "}"
    words = dict.fromkeys(_choices(metavar), "")
    option = parser.settings.get(action.dest)
    if option is not None and option.optional:
        words["none"] = ""
    outside = re.sub(r"\{[^}]*\}", "", metavar).strip("|")
    found = KINDS[outside](current) if outside in KINDS else Candidates()
    fits = any(word.startswith(current) for word in words)
    return Candidates(words | found.words, "none" if fits else found.files)


def _choices(metavar: str) -> Iterator[str]:
    """`{best,latest,STEP}` → best, latest."""
    for group in re.findall(r"\{([^}]*)\}", metavar):
        yield from (word for word in group.split(",") if not word.isupper())


def _runs(current: str) -> Candidates:
    from surefoot.runs import list_runs
    from surefoot.runs.directory import ROOT

    words = {"latest": "the newest run"}
    for run in list_runs():
        names = [str(run.path), str(run.path.relative_to(ROOT)), run.path.name]
        words |= dict.fromkeys([name for name in names if current and name.startswith(current)][:1] or names[:1], "")
    return Candidates(words, "folders" if current else "none")


def _envs(current: str) -> Candidates:
    from surefoot.envs.backends import backend_of, known_names

    words: list[str] = []
    with suppress(*user_errors()):  # an error in another package: offer nothing, as completion cannot show errors
        words += backend_of(current).candidates(current)
    if ":" in current:
        return Candidates(dict.fromkeys(words, ""))
    prefixes = [f"{name}:" for name in known_names()] if current else []
    return Candidates(dict.fromkeys([*words, *prefixes], ""), ".py" if current else "none")


def _envs_or_folders(current: str) -> Candidates:
    return Candidates(_envs(current).words, "folders" if current else "none")


def _objects(current: str) -> Candidates:
    """`file.py:` → the classes and functions that the file defines. It is read, never executed."""
    from surefoot.envs.ids import objects_in

    source, colon, _ = current.partition(":")
    return Candidates(dict.fromkeys(objects_in(source), "")) if colon else Candidates({}, ".py")


def _wrappers(current: str) -> Candidates:
    from surefoot.envs.ids import wrapper_names

    if ":" in current:
        return _objects(current)
    return Candidates(dict.fromkeys(wrapper_names(), ""), ".py" if current else "none")


def _presets(current: str) -> Candidates:
    from surefoot.training.config.presets import list_presets

    return Candidates(dict.fromkeys([*list_presets(), "none"], ""))


def _algos(current: str) -> Candidates:
    from surefoot.algorithms import ALGORITHMS, installed_algorithms

    if ":" in current:
        return _objects(current)
    return Candidates(dict.fromkeys([*ALGORITHMS, *installed_algorithms()], ""), ".py" if current else "none")


def _words(current: str) -> Candidates:
    """Whatever `surefoot explain` explains; the algorithms alone before a letter is typed, because there are many."""
    from surefoot.cli.explain import known_words

    found = _algos(current)
    return Candidates({**found.words, **known_words()}, found.files) if current and ":" not in current else found


def _files(pattern: str) -> Callable[[str], Candidates]:
    return lambda current: Candidates({}, pattern)


def _engines(current: str) -> Candidates:
    from surefoot.engine.names import BUILT_IN

    return Candidates(dict.fromkeys(BUILT_IN, "")) if not current or ":" not in current else _objects(current)


KINDS: dict[str, Callable[[str], Candidates]] = {  # metavar -> what it stands for
    "RUN": _runs,
    "ENV": _envs,
    "ENV|DIR": _envs_or_folders,
    "PRESET": _presets,
    "ALGO": _algos,
    "WORD": _words,
    "ENGINE": _engines,
    "WRAPPER": _wrappers,
    "FILE.py:CLASS": _objects,
    "ADAPTER.py": _files(".py"),
    "FILE.toml": _files(".toml"),
    "FILE.mp4": _files(".mp4"),
    "FILE.zip": _files(".zip"),
    "FILE.npz": _files(".npz"),
    "FILE": _files("any"),
    "DIR": _files("folders"),
}


def typed_words(line: str) -> tuple[list[str], str]:
    """The words of an unfinished command line, and the one at its end (which may be empty)."""
    words: list[str] = []
    word: list[str] | None = None
    quote, escaped = "", False
    for letter in line:
        if escaped:
            word, escaped = [*(word or []), letter], False
        elif letter == "\\" and quote != "'":
            word, escaped = word or [], True
        elif letter == quote:
            quote = ""
        elif not quote and letter in "'\"":
            word, quote = word or [], letter
        elif not quote and letter.isspace():
            if word is not None:
                words.append("".join(word))
            word = None
        else:
            word = [*(word or []), letter]
    return words, "".join(word or [])
