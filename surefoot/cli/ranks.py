"""`--ranks N`: one run in N processes of this machine, which PyTorch's torchrun starts and watches."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence

from surefoot.cli.flags import Parser
from surefoot.cli.forwarding import children, warn
from surefoot.engine.torchrun import quieten_torch
from surefoot.errors import SurefootError, UsageError
from surefoot.limits import NO_MORE, startable
from surefoot.settings import coerce
from surefoot.training.life.signals import WARNING


def add_ranks(parser: Parser) -> None:
    parser.add_argument(
        "--ranks", metavar="N", help="share the envs among N processes of this machine, which learn as one [1]"
    )


def number_of(text: str | None) -> int:
    """How many processes to start; 1 if this is one of them."""
    try:
        number = 1 if text is None else coerce("ranks", text, int)
    except UsageError:  # whose words are for numbers of steps
        number = 0
    if number < 1:
        raise UsageError(f"--ranks {text!r} is not a number of processes; write a whole number from 1 up: --ranks 2")
    if number > 1 and "TORCHELASTIC_RUN_ID" in os.environ:
        raise UsageError("--ranks starts processes, but torchrun has started this one; drop --ranks")
    return number


def without(words: Sequence[str]) -> list[str]:
    """The words without `--ranks N`."""
    kept, skip = [], False
    for word in words:
        if not skip and word != "--ranks" and not word.startswith("--ranks="):
            kept.append(word)
        skip = word == "--ranks"
    return kept


def launch(number: int, command: str, words: Sequence[str]) -> int:
    """Run `surefoot COMMAND …` in this many processes; returns the exit code of the first that failed."""
    if startable(number) == 1:  # torchrun would wait for minutes for a store that has no thread
        raise SurefootError(NO_MORE)
    quieten_torch()
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    for name in list(logging.root.manager.loggerDict):  # each of its modules has a level of its own
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # everything worth saying is said below
    sys.stdout.flush()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun would set it with a warning
    for warning in WARNING:
        signal.signal(warning, lambda number, _: warn(children(), number))
    given = ["--standalone", "--nproc-per-node", str(number), "-m", "surefoot", command, *without(words)]
    try:
        run(parse_args(given))  # type: ignore[no-untyped-call]
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    except ChildFailedError as failed:
        rank, first = failed.get_first_failure()
        code: int = first.exitcode
        if code < 0:
            raise SurefootError(
                f"process {rank} of {number} (pid {first.pid}) was ended by {first.signal_name()}, and the others with "
                f"it; `surefoot resume latest --ranks {number}` continues from the last checkpoint, if there is one"
            ) from None
        return code
    return 0
