"""`surefoot import-sb3 FILE.zip`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from surefoot.cli.flags import Parser, add_json, add_settings
from surefoot.envs.config import EnvConfig
from surefoot.runs.directory import shell_path
from surefoot.settings import options
from surefoot.text import print

EXAMPLES = """examples:
  surefoot import-sb3 model.zip --env CartPole-v1
  surefoot import-sb3 model.zip --env Pendulum-v1 --normalizer stats.npz
  surefoot import-sb3 model.zip       to load, export or serve it only
"""
DESCRIPTION = """Make a run of a model that Stable-Baselines3 or sb3-contrib saved: PPO, A2C, TRPO, RecurrentPPO or
MaskablePPO. It acts as it did there, and can be evaluated, filmed, exported and trained on.

Nothing in the file is executed: settings are read as JSON, and weights with PyTorch's reader that knows only tensors.
The file does not name its env, so give --env. Statistics of VecNormalize are in another file; docs/import.md has the
lines that turn it into an .npz for --normalizer."""


def run(words: Sequence[str]) -> int:
    parser = Parser(prog="surefoot import-sb3", description=f"{DESCRIPTION}\n\n{EXAMPLES}")
    parser.add_argument("file", metavar="FILE.zip", help="what model.save wrote")
    parser.add_argument("--normalizer", metavar="FILE.npz", help="the statistics of VecNormalize")
    parser.add_argument("--env", metavar="ENV", help="the environment that it was trained in")
    parser.add_argument("--run-dir", metavar="DIR", help="the new folder of the run [runs/ENV/ALGO/TIME]")
    add_json(parser)
    add_settings(parser, options(EnvConfig))
    arguments = vars(parser.parse_args(words))
    named = {name: arguments.pop(name) for name in ("file", "normalizer", "env", "run_dir", "json")}
    from surefoot.api import import_sb3

    found = import_sb3(
        named["file"], normalizer=named["normalizer"], env=named["env"], run_dir=named["run_dir"], **arguments
    )
    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)
    where = shell_path(found.run.path)
    out = sys.stderr if named["json"] else sys.stdout
    print(f"{found.run.path}: {found.algo}, trained for {found.steps:,} steps", file=out)
    command = f"eval {where}" if named["env"] else f"export {where} --to c"
    print(f"To go on: surefoot {command}", file=out)
    if named["json"]:
        print(
            json.dumps({"run_dir": str(found.run.path), "algo": found.algo, "steps": found.steps, "notes": found.notes})
        )
    return 0
