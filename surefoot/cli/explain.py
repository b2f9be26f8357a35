"""`surefoot explain WORD`: an algorithm with its settings, a setting, a metric or a word of the field."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Sequence

from surefoot.algorithms import ALGORITHMS, described, get_algorithm, installed_algorithms, preset_algorithm
from surefoot.analysis.columns import COLUMNS
from surefoot.analysis.instruments import BY_NAME as INSTRUMENTS
from surefoot.analysis.instruments import Instrument, instrument_of
from surefoot.cli import glossary
from surefoot.cli.flags import Parser, format_value
from surefoot.errors import UsageError, did_you_mean
from surefoot.settings import Option, options, title_of
from surefoot.text import print
from surefoot.training.config.other_libraries import ELSEWHERE
from surefoot.training.config.resolve import all_options
from surefoot.training.reports.screen import fit
from surefoot.user_code import names_code


def run(words: Sequence[str]) -> int:
    parser = Parser(
        prog="surefoot explain",
        description="Show an algorithm (its formula, what it adds to the previous one, every setting), or what a "
        "setting, a metric or a word of the field means.\n\nexamples:\n  surefoot explain trpo\n"
        "  surefoot explain gae\n  surefoot explain clip_ratio\n  surefoot explain trust region",
    )
    parser.add_argument(
        "word",
        metavar="WORD",
        nargs="+",
        help=f"an algorithm ({', '.join(ALGORITHMS)}, or your own: file.py:Class, module:Class), a setting, a metric, "
        "or a word such as advantage, kl or baseline",
    )
    print(fit(explain(" ".join(parser.parse_args(words).word))))
    return 0


def explain(name: str) -> str:
    """What there is to say about an algorithm or a word."""
    if name in ALGORITHMS or names_code(name) or name in installed_algorithms() or name.endswith(".py"):
        return explain_algorithm(name)
    word = _spelled(name)
    if word.replace("_", "-") in ALGORITHMS:
        return explain_algorithm(word.replace("_", "-"))
    parts = list(dict.fromkeys(_parts(word)))  # another library's name may be an alias of the same word
    if parts:
        return "\n\n".join(parts)
    known = known_words()
    raise UsageError(
        f"'{name}' is no algorithm, setting, metric or word of the glossary{did_you_mean(word, known)} "
        "(`surefoot list algos` lists the algorithms; one of your own is file.py:Class or module:Class)"
    )


def known_words() -> dict[str, str]:
    """Everything that can be explained, with what it is."""
    found = dict.fromkeys(_settings(), "setting")
    found |= dict.fromkeys([*COLUMNS, *INSTRUMENTS], "metric")
    found |= dict.fromkeys(glossary.BY_NAME, "word")
    return found | dict.fromkeys([*ALGORITHMS, *installed_algorithms()], "algorithm")


def _spelled(name: str) -> str:
    """A word as settings spell it: `--clip-ratio` and `Clip ratio` are clip_ratio."""
    return "_".join(name.strip().lstrip("-").lower().replace("-", " ").split())


def _parts(word: str) -> Iterator[str]:
    """The entry of the glossary, the setting and the metric of this name, as far as there are any."""
    if word in glossary.BY_NAME:
        yield glossary.described(glossary.BY_NAME[word])
    setting = _settings().get(word)
    if setting is not None:
        yield "\n".join(_explain_setting(*setting))
    metric = instrument_of(word)
    if metric is not None:
        yield "\n".join(_explain_metric(metric))
    elif (column := "info/NAME" if word.startswith("info/") else word) in COLUMNS:
        yield f"metric {column}\n    {COLUMNS[column]}"
    here = ELSEWHERE.get(word)
    if setting is None and here is not None:
        value = "" if here.value is None else f" = {here.value}"
        note = f" ({here.note})" if here.note else ""
        yield f"{word} is a name of another library; here it is {here.setting}{value}{note}."
        yield from _parts(here.setting)


def _settings() -> dict[str, tuple[Option, dict[str, str]]]:
    """Every setting of a built-in algorithm or of all runs, with its default for each algorithm that has it."""
    found: dict[str, tuple[Option, dict[str, str]]] = {}
    for algo in ALGORITHMS:
        for name, option in all_options(algo).items():
            found.setdefault(name, (option, {}))[1][algo] = format_value(option.default)
    return found


def _explain_setting(option: Option, defaults: dict[str, str]) -> Iterator[str]:
    yield f"setting {option.name} ({title_of(option.owner).lower()})"
    yield f"    {option.help}"
    values = set(defaults.values())
    if len(defaults) == len(ALGORITHMS) and len(values) == 1:
        yield f"    default: {values.pop()}"
    else:
        yield "    default: " + ", ".join(f"{value} ({algo})" for algo, value in defaults.items())
    if option.flag:
        yield f"    flag: --{option.name.replace('_', '-')}"


def _explain_metric(metric: Instrument) -> Iterator[str]:
    yield f"metric {metric.name}" + (f" ({metric.of})" if metric.of else "")
    yield f"    {metric.meaning}"
    if metric.formula:
        yield f"    {metric.formula}"
    healthy = "" if metric.healthy == "–" else f"; healthy: {metric.healthy}"
    yield f"    unit: {metric.unit}{healthy}"


def explain_algorithm(name: str) -> str:
    algorithm = get_algorithm(name)
    heading = " → ".join(f"[{rung}]" if rung == name else rung for rung in ALGORITHMS)
    if name not in ALGORITHMS:
        tuned = preset_algorithm(name, algorithm)
        heading = name + (f" (uses the presets of {tuned})" if tuned != name else "")
    lines = [heading, "", described(algorithm), "", "settings (default in brackets)"]
    title = ""
    all_options(algorithm)  # refuses a setting that another part of the run has
    for option in options(algorithm.config_type):
        group = title_of(option.owner).lower()
        if group != title:
            lines += ["", f"  {group}"]
            title = group
        lines.append(f"    {option.name} [{format_value(option.default)}]")
        lines.append(f"        {option.help}")
    source = inspect.getfile(algorithm)
    source = min(source, os.path.relpath(source), key=len)
    lines += ["", f"source: {source}", f"try it: surefoot train CartPole-v1 --algo {name}"]
    return "\n".join(lines)
