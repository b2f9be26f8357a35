"""`surefoot train ENV`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from surefoot.algorithms import ALGORITHMS, get_algorithm
from surefoot.cli.eval import describe as describe_evaluation
from surefoot.cli.flags import Parser, add_settings, add_trust, format_value, trusting
from surefoot.errors import UsageError
from surefoot.runs import find_run
from surefoot.runs.directory import shell_path
from surefoot.runs.files import read_json
from surefoot.training.config import DEFAULT_ALGO, TrainConfig, algorithms_with, all_options, read_toml, resolve
from surefoot.training.presets import load_preset
from surefoot.training.progress import as_return

ELSEWHERE = {  # what other libraries call it
    "lr": "learning_rate",
    "n_steps": "rollout_length",
    "num_steps": "rollout_length",
    "n_envs": "num_envs",
    "n_epochs": "num_epochs",
    "update_epochs": "num_epochs",
    "batch_size": "num_minibatches",
    "ent_coef": "entropy_coef",
    "vf_coef": "value_coef",
    "clip_range": "clip_ratio",
    "clip_coef": "clip_ratio",
    "total_timesteps": "total_steps",
    "n_timesteps": "total_steps",
    "timesteps": "total_steps",
    "net_arch": "hidden_sizes",
    "use_sde": "std gsde",
    "sde_sample_freq": "sde_resample",
}

EXAMPLES = """examples:
  surefoot train CartPole-v1                                 PPO, the tuned preset, a seed drawn and printed
  surefoot train Pendulum-v1 --algo trpo --total-steps 200k  another algorithm; its own preset, if there is one
  surefoot train --preset lecture/cartpole                   the env comes with the preset
  surefoot train my/env.py:MyEnv --env-kwargs '{"size": 5}'  an environment of your own
  surefoot train CartPole-v1 --dry-run                       show every setting and where it comes from
"""


def run(words: Sequence[str]) -> int:
    algo = algorithm_of(words)
    arguments = vars(_parser(algo).parse_args(words))
    names = ("env", "preset", "config", "like", "run_dir", "dry_run", "json", "trust")
    control = {key: arguments.pop(key) for key in names}
    typed_algo = arguments.pop("algo")
    preset, source = control["preset"], control["config"]
    if control["like"]:
        source, preset = _config_of(control["like"]), "none"
    config = resolve(control["env"], typed_algo, preset, source, arguments)
    out = sys.stderr if control["json"] else sys.stdout
    if control["dry_run"]:
        print(describe(config), file=out)
        if control["json"]:
            print(json.dumps(config.flat()))
        return 0
    return _train(config, control, out)


def _config_of(run: str) -> str:
    """The config file of a run to repeat; what it cannot repeat is said."""
    from surefoot.kernels import library
    from surefoot.runs.manifest import different_machine, different_versions

    found = find_run(run)
    if read_json(found.manifest).get("env_from_python"):
        raise UsageError(f"{found.path} was trained on an env that was made in Python, which is not written down")
    uses_kernels = read_json(found.manifest).get("engine") != "torch"
    other_machine = different_machine(found, {"kernels": library.facts()}, kernels=uses_kernels)
    for note in different_versions(found) + other_machine:
        print(note, file=sys.stderr)
    return str(found.config)


def algorithm_of(words: Sequence[str]) -> str:
    """The algorithm decides which flags exist, so it is found before they are parsed."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--algo")
    first.add_argument("--preset")
    first.add_argument("--config")
    first.add_argument("--like")
    found, _ = first.parse_known_args(words)
    sources: list[dict[str, Any]] = [{"algo": found.algo} if found.algo else {}]
    if found.config and found.like:
        raise UsageError("--like takes its settings from a run, --config from a file; give one of the two")
    if found.config:
        sources.append(read_toml(found.config))
    if found.like:
        sources.append(read_toml(find_run(found.like).config))
    if found.preset and found.preset not in ("auto", "none"):
        sources.append(load_preset(found.preset))
    algo = str(next((source["algo"] for source in sources if "algo" in source), DEFAULT_ALGO))
    get_algorithm(algo)
    return algo


def explain_unknown(algo: str, flag: str) -> str | None:
    """What a flag that the algorithm does not have is elsewhere; None where it is nothing."""
    name = flag.removeprefix("--").removeprefix("no-").replace("-", "_")
    if name in ELSEWHERE:
        return f"unknown flag {flag}; here it is --{ELSEWHERE[name].replace('_', '-')}"
    others = algorithms_with(name)
    return f"{flag} is no setting of {algo}; it belongs to {', '.join(others)}" if others else None


def _parser(algo: str) -> Parser:
    parser = Parser(
        explain_unknown=lambda flag: explain_unknown(algo, flag),
        prog="surefoot train",
        usage="surefoot train [ENV] [--algo ALGO] [flags]",
        description=f"Train a policy. The flags below are those of {algo}; --algo changes them.\n\n{EXAMPLES}",
    )
    kinds = "registered id, module:Id, path/to/file.py:Factory, envpool:ID, pettingzoo:module"
    parser.add_argument("env", nargs="?", metavar="ENV", help=kinds)
    parser.add_argument("--algo", metavar="{" + ",".join(ALGORITHMS) + "}", help=f"the algorithm [{DEFAULT_ALGO}]")
    parser.add_argument(
        "--preset", default="auto", help="a preset's name, or none [the tuned one of ENV and ALGO, if there is one]"
    )
    parser.add_argument("--config", metavar="FILE.toml", help="settings from a file, such as a run's config.toml")
    parser.add_argument("--like", metavar="RUN", help="repeat a run: its settings and seed, apart from flags given")
    parser.add_argument("--run-dir", metavar="DIR", help="where to put the run [runs/ENV/ALGO/TIME-sSEED]")
    parser.add_argument("--dry-run", action="store_true", help="print every setting with its origin, and stop")
    parser.add_argument(
        "--json", action="store_true", help="the last line on stdout is one JSON object; the rest: stderr"
    )
    add_trust(parser)
    add_settings(parser, all_options(algo).values())
    return parser


def describe(config: TrainConfig) -> str:
    """Every setting with its value and origin, by group."""
    width = max(len(name) for name in config.flat())
    lines = [f"preset: {config.preset or 'none'}"]
    for group in config.groups:
        title = (type(group).__doc__ or "").strip().splitlines()[0].rstrip(".")
        lines += ["", title]
        for name, value in group.as_dict().items():
            origin = config.origins[name]
            lines.append(
                f"  {name:<{width}}  {format_value(value):<16} {'' if origin == 'default' else origin}".rstrip()
            )
    return "\n".join(lines)


def _train(config: TrainConfig, control: dict[str, Any], out: Any) -> int:
    if sys.stderr.isatty():
        print("loading PyTorch ...", end="\r", file=sys.stderr, flush=True)
    from surefoot.training.launch import train_config

    result = train_config(
        config,
        run_dir=control["run_dir"],
        to_stderr=control["json"],
        own_process=True,
        trust=trusting(control["trust"]),
    )
    say_result(result, out)
    if control["json"]:
        print(json.dumps(result))
    return 0


def say_result(result: dict[str, Any], out: Any) -> None:
    where = result["run_dir"]
    print(
        f"\ntrained {result['total_steps']:,} steps in {result['seconds']:.1f} s "
        f"({result['steps_per_second']:,.0f} steps/s, {result['engine']})",
        file=out,
    )
    if result["stopped"]:
        print(f"stopped early: {result['stopped']}", file=out)
    if result["target_return"] is not None and not result["resume"]:
        said = "reached" if result["target_reached"] else "NOT reached"
        print(f"target return {result['target_return']:g}: {said}", file=out)
    if result["eval"]:
        print(f"greedy {describe_evaluation(result['eval'])}", file=out)
    if result["best"]:
        step, found = result["best"]["step"], result["best"]["selection_return"]
        print(f"best by evaluation during training: step {step:,} ({as_return(found)}); --checkpoint best", file=out)
    next_command = f"surefoot video {shell_path(where)} --untrained"
    if result["env"].startswith("pettingzoo:"):  # several agents: there is no film of them
        next_command = f"surefoot eval {shell_path(where)} --stochastic --trust"
    print(
        f"run:     {where}\n"
        f"curves:  tensorboard --logdir {shell_path(where + '/tensorboard')}"
        + ("" if find_spec("tensorboard") else '   (pip install "surefoot[tensorboard]")')
        + f"\nnext:    {result['resume'] or next_command}",
        file=out,
    )
