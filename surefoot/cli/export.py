"""`surefoot export RUN --to c`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from surefoot.cli.flags import Parser, add_json, add_run, trusting
from surefoot.errors import UsageError
from surefoot.settings import coerce
from surefoot.text import print

EXAMPLES = """examples:
  surefoot export latest --to c                 one C99 file and a header
  surefoot export latest --to onnx              for onnxruntime
  surefoot export latest --to c --checkpoint best --out policy
  surefoot export latest --to c --stochastic    actions are drawn
"""
DESCRIPTION = """Write a run's policy as a file for other programs. It takes raw observations and gives actions that
the env accepts: the normaliser, the encoders, the memory, the mask and the bounds of the actions are inside.

The result is compared with the policy itself on thousands of observations, recorded in the env and random. If they
differ, nothing is written. The comparison is printed and kept as parity.json beside the files."""
LARGEST_SEED = 2**63


def run(words: Sequence[str]) -> int:
    parser = Parser(prog="surefoot export", description=f"{DESCRIPTION}\n\n{EXAMPLES}")
    add_run(parser)
    parser.add_argument("--to", required=True, metavar="{c,onnx}", help="the kind of file")
    parser.add_argument(
        "--checkpoint", default="latest", metavar="{best,latest,STEP}", help="the checkpoint to use [latest]"
    )
    parser.add_argument("--out", metavar="DIR", help="the folder to write to [RUN/exports/STEP-KIND]")
    parser.add_argument(
        "--name", default="surefoot_policy", metavar="TEXT", help="name of the files and C functions [surefoot_policy]"
    )
    parser.add_argument("--stochastic", action="store_true", help="draw actions instead of taking the most likely")
    parser.add_argument("--seed", metavar="N", help="--to c: seed of the drawn actions [0]")
    add_json(parser)
    arguments = parser.parse_args(words)
    seed = coerce("seed", arguments.seed, int | None)
    if seed is not None and not arguments.stochastic:
        raise UsageError("--seed has no effect without --stochastic; add it, or drop --seed")
    if seed is not None and arguments.to == "onnx":
        raise UsageError("--seed is only for --to c: an ONNX model takes its random numbers as an input; drop --seed")
    if seed is not None and not 0 <= seed < LARGEST_SEED:
        raise UsageError(f"--seed {seed} must be from 0 to {LARGEST_SEED - 1}")
    from surefoot.api import export_run

    found = export_run(
        arguments.run,
        arguments.to,
        arguments.out,
        checkpoint=arguments.checkpoint,
        name=arguments.name,
        seed=(seed or 0) if arguments.stochastic else None,
        strict=arguments.strict,
        trust=trusting(arguments.trust),
    )
    out = sys.stderr if arguments.json else sys.stdout
    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)
    for kind, parity in found.parity.items():
        ties = f", {parity.ties} ties broken differently" if parity.ties else ""
        print(
            f"parity on {parity.observations:,} {kind} observations: parameters within {parity.parameters:.1e}, "
            f"actions within {parity.actions:.1e}{ties}",
            file=out,
        )
    print(f"{found.folder}: {', '.join(found.files)}", file=out)
    if arguments.json:
        parities = {kind: asdict(parity) for kind, parity in found.parity.items()}
        print(json.dumps({"folder": str(found.folder), "files": list(found.files), "parity": parities}))
    return 0
