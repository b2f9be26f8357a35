"""Command-line flags from settings: every field of a config is a flag of the same name."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from surefoot.errors import UsageError, did_you_mean
from surefoot.settings import Option, Seconds, unwrap_optional
from surefoot.text import print

EXAMPLES = {  # of arguments that must not be left out
    "RUN": ("run", "latest"),
    "ALGO": ("algorithm", "ppo"),
    "ENV": ("environment", "CartPole-v1"),
    "{algos,envs,presets,runs}": ("kind", "runs (or algos, envs, presets)"),
}


class Parser(argparse.ArgumentParser):
    """Errors as UsageError with a suggestion; flags must be written out in full.

    `explain_unknown` may say more of a flag that does not exist here (that it belongs to another algorithm).
    """

    def __init__(self, explain_unknown: Callable[[str], str | None] | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **kwargs)
        self._explain_unknown = explain_unknown

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse, but `--flag -5e-1` is a number and not another flag."""
        words = list(args)
        for index, word in reversed(list(enumerate(words))[1:]):
            if re.fullmatch(r"-[0-9.]+[eE][-+]?[0-9]+", word) and words[index - 1].startswith("--"):
                words[index - 1 : index + 1] = [f"{words[index - 1]}={word}"]
        return super().parse_args(words, namespace)

    def error(self, message: str) -> Any:
        prefix = "unrecognized arguments: "
        if message.startswith(prefix):
            wrong = message.removeprefix(prefix).split()[0].split("=")[0]
            known = self._explain_unknown(wrong) if self._explain_unknown else None
            flags = [flag for flag in self._option_string_actions if flag not in ("-h", "--help")]
            message = known or f"unknown flag {wrong}{did_you_mean(wrong, flags)}"
            if not wrong.startswith("-"):
                message = f"there is no place for '{wrong}' here"
        missing = message.removeprefix("the following arguments are required: ")
        if missing in EXAMPLES:
            what, example = EXAMPLES[missing]
            message = f"no {what} given; name one: {self.prog} {example}"
        raise UsageError(f"{message} (`{self.prog} --help` shows the flags)")


def add_run(parser: argparse.ArgumentParser) -> None:
    """What every command takes that reads a run and makes its env."""
    parser.add_argument("run", metavar="RUN", help="a run's directory, a unique prefix of it, or latest")
    parser.add_argument("--strict", action="store_true", help="refuse a damaged checkpoint (exit 4), use no older one")
    add_trust(parser)


def add_trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust", action="store_true", help="modules and files that a run or a config names may be executed"
    )


def trusting(flag: bool) -> bool | Callable[[str], bool]:
    """`--trust`, or a question where somebody sits at a terminal."""
    return flag or (_ask if sys.stdin.isatty() and sys.stderr.isatty() else False)


def _ask(message: str) -> bool:
    print(f"{message}Execute it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def add_settings(parser: argparse.ArgumentParser, settings: Iterable[Option]) -> None:
    """A flag per setting, in groups named after their owners. Only flags that were typed appear in the result."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in settings:
        if not option.flag:
            continue
        title = (option.owner.__doc__ or "").strip().splitlines()[0].rstrip(".").lower()
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add_flag(groups[title], option)


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
        group.add_argument(flag, nargs="*", metavar=_metavar(get_args(inner)[0]), **keywords)
    else:
        group.add_argument(flag, metavar=_metavar(inner), **keywords)


def _metavar(kind: Any) -> str:
    if get_origin(kind) in (Union, UnionType):
        return "|".join(map(_metavar, get_args(kind)))
    if get_origin(kind) is Literal:
        return "{" + ",".join(map(str, get_args(kind))) + "}"
    if get_origin(kind) is dict:
        return "JSON"
    return {int: "N", float: "X", Seconds: "TIME"}.get(kind, "TEXT")


def format_value(value: Any) -> str:
    """A value as it would be typed."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "nothing"
    if isinstance(value, int) and value >= 10_000:
        return f"{value:_}"
    if value == {}:
        return "nothing"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
