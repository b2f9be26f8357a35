"""`surefoot COMMAND …`: finds the command, runs it, turns errors into messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from surefoot import __version__
from surefoot.cli.limits import ADVICE, is_out_of_memory, make_do_with_few_threads, require_room_for_torch
from surefoot.errors import EnvError, SurefootError, UsageError, did_you_mean

COMMANDS = {  # name -> (module, one line)
    "train": ("surefoot.cli.train", "train a policy"),
    "resume": ("surefoot.cli.resume", "go on with an interrupted run, or give a finished one more steps"),
    "eval": ("surefoot.cli.eval", "evaluate a run's policy"),
    "video": ("surefoot.cli.video", "film a run's policy, alone or beside the untrained one"),
    "doctor": ("surefoot.cli.doctor", "examine an environment before training on it"),
    "bench": ("surefoot.cli.bench", "measure how fast this installation trains"),
    "explain": ("surefoot.cli.explain", "an algorithm: formula, what is new in it, every setting"),
    "theory": ("surefoot.cli.theory", "the lecture's formulas on MDPs where every number is exact, with pictures"),
    "list": ("surefoot.cli.list", "algorithms, environments, presets or runs"),
}

WITH_TORCH = ("train", "resume", "eval", "video", "bench")

HELP = f"""surefoot {__version__}: policy gradients that don't step off the cliff

  surefoot train CartPole-v1                           PPO with the tuned preset
  surefoot train Pendulum-v1 --algo trpo --seed 3      another algorithm, a fixed seed
  surefoot eval latest                                 the newest run, 100 greedy episodes
  surefoot video latest --untrained                    trained beside untrained, as an mp4
  surefoot doctor my/env.py:MyEnv                      what is wrong with an env, and how to train on it
  surefoot bench CartPole-v1                           how fast this installation trains
  surefoot explain trpo                                what TRPO is, and each of its settings

commands:
{{commands}}

`surefoot COMMAND --help` shows a command's flags.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(words)
    except SurefootError as error:
        print("\n".join([f"surefoot: {error}", *getattr(error, "__notes__", ())]), file=sys.stderr)
        if isinstance(error, EnvError) and error.__cause__ is not None:
            _show_cause(error.__cause__)
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        print(f"surefoot: interrupted {interrupt}".rstrip(), file=sys.stderr)
        return getattr(interrupt, "exit_code", 130)
    except BrokenPipeError:  # the reader of a pipe (head, say) has seen enough of a listing
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        said = f"surefoot: out of memory: {error or 'an allocation failed'}; {ADVICE}"
        print("\n".join([said, *getattr(error, "__notes__", ())]), file=sys.stderr)
        return 1


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        lines = "\n".join(f"  {name:<9} {line}" for name, (_, line) in COMMANDS.items())
        print(HELP.format(commands=lines), end="")
        return 0
    if words[0] in ("-V", "--version", "version"):
        print(f"surefoot {__version__}")
        return 0
    command, *rest = words
    if command not in COMMANDS:
        raise UsageError(f"unknown command '{command}'{did_you_mean(command, COMMANDS)} (`surefoot --help` lists them)")
    make_do_with_few_threads()
    if command in WITH_TORCH and not {"-h", "--help", "--dry-run"} & set(rest):
        require_room_for_torch()
    code: int = import_module(COMMANDS[command][0]).run(rest)
    return code


def _show_cause(cause: BaseException) -> None:
    """The traceback of the user's own code, without our frames before it."""
    import traceback

    ours, trace = os.path.dirname(os.path.dirname(__file__)), cause.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename.startswith(ours):
        trace = trace.tb_next
    traceback.print_exception(cause.with_traceback(trace), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
