"""Generates command-line flags from settings: every field of a config is a flag of the same name."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from shutil import get_terminal_size
from textwrap import fill
from types import UnionType
from typing import Any, ClassVar, Literal, NoReturn, Union, get_args, get_origin

from surefoot.errors import UsageError, did_you_mean
from surefoot.schedules import Schedule
from surefoot.settings import Option, Seconds, title_of, unwrap_optional
from surefoot.text import print

WIDEST = 100  # columns of help text: longer lines are hard to read
ExplainUnknown = Callable[[str, str | None, argparse.Namespace], str | None]
EXAMPLES = {  # for required arguments
    "RUN": ("run", "latest"),
    "A": ("runs", "latest RUN"),
    "A, B": ("runs", "latest RUN"),
    "B": ("second run", "latest RUN"),
    "WORD": ("word", "ppo (or gae, clip_ratio, …)"),
    "ENV": ("environment", "CartPole-v1"),
    "ENV|DIR": ("environment", "CartPole-v1"),
    "FILE.zip": ("file", "run.zip"),
    "RUN, --to": ("run", "latest --to c"),
    "--to": ("kind of file", "latest --to c (or onnx)"),
    "{algos,envs,presets,runs}": ("kind", "runs (or algos, envs, presets)"),
    "{bash,zsh,fish}": ("shell", "bash (or zsh, fish)"),
}


class Help(argparse.RawDescriptionHelpFormatter):
    """Wraps paragraphs to the terminal's width, up to WIDEST, and leaves indented lines (examples) alone."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(get_terminal_size().columns, WIDEST) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = [
            block if "\n " in f"\n{block}" else fill(block, width, initial_indent=indent, subsequent_indent=indent)
            for block in text.strip().split("\n\n")
        ]
        return "\n\n".join(paragraphs)


class Described(Exception):
    """Not an error: carries a command's parser to the shell completion (`Parser.describing`)."""

    def __init__(self, parser: Parser) -> None:
        super().__init__()
        self.parser = parser


class Parser(argparse.ArgumentParser):
    """Raises UsageError with a suggestion; flags must be written in full.

    `explain_unknown` may explain an unknown flag, given its value and the other arguments.
    """

    describing: ClassVar[bool] = False  # raise the parser instead of parsing, for shell completion

    def __init__(self, explain_unknown: ExplainUnknown | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", Help)
        super().__init__(allow_abbrev=False, **kwargs)
        self._explain_unknown = explain_unknown
        self.settings: dict[str, Option] = {}  # settings that are flags, by name

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Like argparse, but `--flag -5e-1` is a number, and `--flag -1h` a time, and not another flag."""
        if Parser.describing:
            raise Described(self)
        words = list(args)
        for index, word in reversed(list(enumerate(words))[1:]):
            if re.fullmatch(r"-[0-9.]+[a-zA-Z][-+0-9]*", word) and re.fullmatch(r"--[^=]+", words[index - 1]):
                words[index - 1 : index + 1] = [f"{words[index - 1]}={word}"]
        found, left = self.parse_known_args(words, namespace)
        if left:
            raise UsageError(self._explain(words, left))
        return found

    def _explain(self, words: list[str], left: list[str]) -> str:
        """Explains the words that could not be parsed."""
        if "--" in words and left[0].startswith("-") and left[0] not in words[: words.index("--")]:
            return f"unexpected argument '{left[0]}': after --, nothing is read as a flag{self._hint()}"
        flags = [word.split("=")[0] for word in left if word.startswith("-")]
        if not flags:
            return f"unexpected argument '{left[0]}'{self._hint()}"
        rest, values = _without(words, flags)
        with suppress(UsageError):  # something else is wrong as well
            typed, _ = self.parse_known_args(rest)
            known = self._explain_unknown(flags[0], values[flags[0]], typed) if self._explain_unknown else None
            if known:
                return known
        own = [flag for flag in self._option_string_actions if flag not in ("-h", "--help")]
        return f"unknown flag {flags[0]}{did_you_mean(flags[0], own)}{self._hint()}"

    def error(self, message: str) -> NoReturn:
        missing = message.removeprefix("the following arguments are required: ")
        if missing in EXAMPLES:
            what, example = EXAMPLES[missing]
            message = f"no {what} given; for example: {self.prog} {example}"
        raise UsageError(f"{message}{self._hint()}")

    def _hint(self) -> str:
        return f" (`{self.prog} --help` shows the flags)"


def _without(words: list[str], flags: list[str]) -> tuple[list[str], dict[str, str | None]]:
    """The words without these flags and the value that follows each, and those values."""
    rest: list[str] = []
    values: dict[str, str | None] = dict.fromkeys(flags)
    open_flag: str | None = None
    for word in words:
        flag, _, value = word.partition("=")
        if flag in values:
            open_flag = None if value else flag
            values[flag] = value or values[flag]
        elif open_flag is not None and not word.startswith("--"):
            values[open_flag], open_flag = word, None
        else:
            open_flag = None
            rest.append(word)
    return rest, values


def add_run(parser: argparse.ArgumentParser) -> None:
    """Arguments of every command that reads a run and makes its env."""
    parser.add_argument("run", metavar="RUN", help="the run: its directory, a unique prefix of its name, or latest")
    parser.add_argument(
        "--strict", action="store_true", help="refuse a damaged checkpoint (exit code 4) instead of using an older one"
    )
    add_trust(parser)


def add_trust(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--trust", action="store_true", help="allow modules and files named by a run or a config to be executed"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line of stdout, all else to stderr"
    )


def trusting(flag: bool) -> bool | Callable[[str], bool]:
    """`--trust`, or a question to the user at a terminal."""
    return flag or (_ask if sys.stdin.isatty() and sys.stderr.isatty() else False)


def _ask(message: str) -> bool:
    print(f"{message}Execute it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def add_settings(parser: Parser, settings: Iterable[Option]) -> None:
    """A flag per setting, in groups named after their owners. Only flags that were typed appear in the result."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in settings:
        if not option.flag:
            continue
        title = title_of(option.owner).lower()
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add_flag(groups[title], option)
        parser.settings[option.name] = option


def _add_flag(group: argparse._ArgumentGroup, option: Option) -> None:
    inner, _ = unwrap_optional(option.type)
    shown = "none" if option.default is None else format_value(option.default)
    # argparse formats help with %; a percent sign in it must be doubled.
    keywords: dict[str, Any] = {
        "dest": option.name,
        "default": argparse.SUPPRESS,
        "help": f"{option.help} [{shown}]".replace("%", "%%"),
    }
    flag = f"--{option.name.replace('_', '-')}"
    if inner is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **keywords)
    elif get_origin(inner) is tuple:
        group.add_argument(flag, nargs="*", metavar=metavar_of(option), **keywords)
    else:
        group.add_argument(flag, metavar=metavar_of(option), **keywords)


def metavar_of(option: Option) -> str:
    """What a value of the setting looks like: N, X, {adam,rmsprop}, RUN …"""
    inner, _ = unwrap_optional(option.type)
    return option.metavar or _metavar(get_args(inner)[0] if get_origin(inner) is tuple else inner)


def _metavar(kind: object) -> str:
    if get_origin(kind) in (Union, UnionType):
        return "|".join(map(_metavar, get_args(kind)))
    if get_origin(kind) is Literal:
        return "{" + ",".join(map(str, get_args(kind))) + "}"
    if get_origin(kind) is dict:
        return "JSON"
    known: dict[object, str] = {int: "N", float: "X", Seconds: "TIME", bool: "{yes,no}"}
    return known.get(kind, "TEXT")


def format_value(value: object) -> str:
    """A value as it would be typed."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "nothing"
    if isinstance(value, int) and value >= 10_000:
        return f"{value:_}"
    if value == {}:
        return "nothing"
    if isinstance(value, float) and not isinstance(value, Schedule):
        return f"{value:g}"
    return "none" if value is None else str(value)
