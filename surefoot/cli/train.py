"""`surefoot train ENV`."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from surefoot.algorithms import ALGORITHMS
from surefoot.cli.flags import Parser, add_json, add_settings, add_trust, format_value, trusting
from surefoot.cli.own_flags import flags_of
from surefoot.cli.ranks import add_ranks, launch, number_of
from surefoot.cli.varied import add_vary, varied
from surefoot.engine.group import check_share
from surefoot.engine.torchrun import is_first
from surefoot.envs.backends import FORMS
from surefoot.errors import UsageError
from surefoot.runs import find_run
from surefoot.runs.files import read_json, read_toml
from surefoot.settings import title_of
from surefoot.sweep.grid import parse_seeds, seeds_text
from surefoot.text import print
from surefoot.training.config.lost_env import lost_env
from surefoot.training.config.other_libraries import explain
from surefoot.training.config.presets import load_preset
from surefoot.training.config.resolve import TrainConfig, algorithms_with, all_options, preset_notes, resolve
from surefoot.training.config.run_config import DEFAULT_ALGO
from surefoot.training.config.together import minibatches
from surefoot.training.config.unused import check_timeout
from surefoot.training.life.trust import agreed_algorithm
from surefoot.training.reports.screen import fit

if TYPE_CHECKING:
    from collections.abc import Mapping

EXAMPLES = """examples:
  surefoot train CartPole-v1
      PPO with its tuned preset; the seed is drawn and printed
  surefoot train Pendulum-v1 --algo trpo --total-steps 200k
      another algorithm, with its own preset if there is one
  surefoot train --preset lecture/cartpole
      the preset names the environment
  surefoot train my/env.py:MyEnv --env-kwargs '{"size": 5}'
      an environment of your own
  surefoot train CartPole-v1 --algo my/spo.py:SPO
      an algorithm of your own
  surefoot train CartPole-v1 --device cuda --seeds 0..31 --vary gamma=0.98,0.99
      64 small runs at once on one GPU
  surefoot train CartPole-v1 --dry-run
      show every setting and where it comes from
"""


def run(words: Sequence[str]) -> int:
    algo = algorithm_of(words)
    arguments = vars(_parser(algo).parse_args(words))
    names = ("env", "preset", "config", "like", "run_dir", "seeds", "vary", "dry_run", "json", "trust", "ranks")
    control = {key: arguments.pop(key) for key in names}
    typed_algo = arguments.pop("algo")
    preset, source = control["preset"], control["config"]
    if control["like"]:
        source, preset = _config_of(control["like"]), "none"

    def resolve_with(given: Mapping[str, object]) -> TrainConfig:
        return resolve(control["env"], typed_algo, preset, source, given, agreed=algo)

    config = resolve_with(arguments)
    check_timeout(config)
    ranks = number_of(control["ranks"])
    check_share(config.algorithm.num_envs, ranks)
    out = sys.stderr if control["json"] else sys.stdout
    seeds = _seeds(control["seeds"], arguments, ranks)
    if control["vary"] and not seeds:
        raise UsageError("--vary trains several runs at once and needs their seeds: add --seeds 0, or --seeds 0..4")
    configs = varied(control["vary"], arguments, config, resolve_with)
    if control["dry_run"]:
        print(fit(describe(config), out), file=out)
        if control["vary"]:
            lines = [
                f"{len(configs) * len(seeds)} runs, with the seeds {seeds_text(seeds)} and each of these:",
                *configs,
            ]
            print(fit("\n".join(["", *lines]), out), file=out)
        if control["json"]:
            print(json.dumps(config.flat()))
        return 0
    if ranks > 1:
        return launch(ranks, "train", words)
    return _train(configs, control["run_dir"], seeds, as_json=control["json"], trust=control["trust"])


def _seeds(words: Sequence[str] | None, typed: Mapping[str, object], ranks: int) -> tuple[int, ...]:
    """Those of `--seeds`; none if the run has one seed."""
    if words is None:
        return ()
    if "seed" in typed:
        raise UsageError("--seed is for one run and --seeds for several at once; give one of the two")
    if ranks > 1:
        raise UsageError("--seeds trains several runs in one process, --ranks one run in several; give one of the two")
    return parse_seeds(words)


def _config_of(run: str) -> str:
    """The config file of a run to repeat; prints notes about anything it cannot repeat."""
    from surefoot.kernels import library
    from surefoot.runs.manifest import different_machine, different_versions, used_kernels

    found = find_run(run)
    if (reason := lost_env(found)) is not None:
        raise UsageError(reason)
    other_machine = different_machine(found, {"kernels": library.facts()}, kernels=used_kernels(found))
    for note in different_versions(found) + other_machine:
        print(note, file=sys.stderr)
    if read_json(found.manifest).get("extended"):
        print("note: that run's total_steps was changed on resume, so its schedules differed at first", file=sys.stderr)
    return str(found.config)


def algorithm_of(words: Sequence[str]) -> str:
    """The algorithm decides which flags exist, so it is found before they are parsed. Code of a file needs trust."""
    first = Parser(prog="surefoot train", add_help=False)
    for name in ("--algo", "--preset", "--config", "--like"):
        first.add_argument(name)
    first.add_argument("--trust", action="store_true")
    found, _ = first.parse_known_args(words)
    sources: list[Mapping[str, object]] = [{"algo": found.algo} if found.algo else {}]
    if found.config and found.like:
        raise UsageError("--like takes its settings from a run, --config from a file; give one of the two")
    file = find_run(found.like).config if found.like else found.config
    if file and not found.algo:
        named = read_toml(file).get("algo") if Parser.describing else agreed_algorithm(file, trusting(found.trust))
        sources.append({"algo": named} if named else {})
    if found.preset and found.preset not in ("auto", "none"):
        sources.append(load_preset(found.preset))
    algo = str(next((source["algo"] for source in sources if "algo" in source), DEFAULT_ALGO))
    flags_of(algo)
    return algo


def explain_unknown(algo: str, flag: str, value: str | None, typed: Namespace) -> str | None:
    """Explains a flag that the algorithm does not have; None if we do not know it."""
    if flag.startswith("--no-"):
        flag, value = f"--{flag.removeprefix('--no-')}", "no"
    name = flag.removeprefix("--").replace("-", "_")
    if name in ("env", "env_id", "task"):
        return f"unknown flag {flag}; the environment comes first, without a flag: surefoot train {value or 'ENV'}"
    if name == "ranks":
        return "unknown flag --ranks; only train and resume share the envs of a run among processes"
    elsewhere = explain(name, algo, all_options(algo), algorithms_with, value, _settings(algo, typed), as_flag=True)
    if elsewhere:
        return f"unknown flag {flag}; {elsewhere}"
    others = algorithms_with(name)
    return f"{flag} is not a setting of {algo}; it belongs to {', '.join(others)}" if others else None


def _settings(algo: str, typed: Namespace) -> dict[str, object] | None:
    """The settings of the run that would be trained; None if something else is wrong as well."""
    flags = [option.name for option in all_options(algo).values() if option.flag]
    given = {name: vars(typed)[name] for name in flags if name in vars(typed)}
    source = find_run(typed.like).config if getattr(typed, "like", None) else getattr(typed, "config", None)
    try:
        return resolve(typed.env, typed.algo, typed.preset, source, given, agreed=algo).flat()
    except UsageError:
        return None


def _parser(algo: str) -> Parser:
    parser = Parser(
        explain_unknown=partial(explain_unknown, algo),
        prog="surefoot train",
        usage="surefoot train [ENV] [--algo ALGO] [flags]",
        description=f"Train a policy. The flags below are those of {algo}; --algo changes them.\n\n{EXAMPLES}",
    )
    parser.add_argument(
        "env", nargs="?", metavar="ENV", help=", ".join(("registered id, module:Id, file.py:Factory", *FORMS))
    )
    add_algo(parser)
    parser.add_argument("--config", metavar="FILE.toml", help="read settings from a file, such as a run's config.toml")
    parser.add_argument("--like", metavar="RUN", help="repeat a run with its settings and seed; flags override")
    parser.add_argument("--run-dir", metavar="DIR", help="run directory to create [runs/ENV/ALGO/TIME-sSEED]")
    parser.add_argument(
        "--seeds", nargs="+", metavar="N..M", help="train a run with each of these seeds, all at once on a GPU"
    )
    add_vary(parser)
    parser.add_argument("--dry-run", action="store_true", help="print every setting and where it comes from, then stop")
    add_ranks(parser)
    add_json(parser)
    add_trust(parser)
    add_settings(parser, flags_of(algo).values())
    return parser


def add_algo(parser: Parser) -> None:
    """The `--algo` flag of `train` and `bench`."""
    names = "{" + ",".join(ALGORITHMS) + "}|FILE.py:CLASS"
    parser.add_argument("--algo", metavar=names, help=f"the algorithm, or your own [{DEFAULT_ALGO}]")
    parser.add_argument(
        "--preset", default="auto", help="name of a preset, or none [the tuned one for ENV and ALGO, if any]"
    )


def describe(config: TrainConfig) -> str:
    """Every setting with its value and origin, by group."""
    width = max(len(name) for name in config.flat())
    counted = minibatches(config, config.algorithm.num_envs, config.algorithm.rollout_length)
    lines = [f"preset: {config.preset or 'none'}", *(f"note: {note}" for note in preset_notes(config))]
    for group in config.groups:
        lines += ["", title_of(type(group))]
        for name, value in group.as_dict().items():
            origin = config.origins[name]
            said = f"auto ({counted[name]})" if name in counted and value == "auto" else format_value(value)
            lines.append(f"  {name:<{width}}  {said:<16} {'' if origin == 'default' else origin}".rstrip())
    return "\n".join(lines)


def _train(
    configs: Mapping[str, TrainConfig], run_dir: str | None, seeds: Sequence[int], *, as_json: bool, trust: bool
) -> int:
    """With seeds, each of the configs and seeds; otherwise the only config."""
    if sys.stderr.isatty():
        print("loading PyTorch ...", end="\r", file=sys.stderr, flush=True)
    how: dict[str, Any] = {"run_dir": run_dir, "to_stderr": as_json, "own_process": True, "trust": trusting(trust)}
    result: object
    if seeds:
        from surefoot.training.life.seeds import train_seeds

        result = train_seeds(configs, seeds, **how)
    else:
        from surefoot.training.life.launch import train_config

        (config,) = configs.values()
        result = train_config(config, **how)
    if as_json and is_first():
        print(json.dumps(result))
    return 0
