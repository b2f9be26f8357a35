"""`surefoot COMMAND …`: finds the command, runs it, turns errors into messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from surefoot import __version__
from surefoot.errors import EnvError, SurefootError, UsageError, did_you_mean

COMMANDS = {  # name -> (module, one line)
    "train": ("surefoot.cli.train", "train a policy"),
    "resume": ("surefoot.cli.resume", "continue an interrupted run, or give a finished one more steps"),
    "eval": ("surefoot.cli.eval", "evaluate the policy of a run"),
    "video": ("surefoot.cli.video", "film the policy of a run, alone or beside the untrained one"),
    "doctor": ("surefoot.cli.doctor", "examine an environment before training on it"),
    "bench": ("surefoot.cli.bench", "measure how fast this installation trains"),
    "explain": ("surefoot.cli.explain", "show an algorithm: its formula, what is new in it, its settings"),
    "theory": ("surefoot.cli.theory", "compute the lecture's formulas exactly on small MDPs"),
    "list": ("surefoot.cli.list", "list algorithms, environments, presets or runs"),
    "completion": ("surefoot.cli.completion", "print a script that completes commands in bash, zsh or fish"),
}

HELP = f"""surefoot {__version__}: policy gradients that don't step off the cliff

  surefoot train CartPole-v1                       PPO with the tuned preset
  surefoot train Pendulum-v1 --algo trpo --seed 3  another algorithm and seed
  surefoot eval latest                             the newest run, greedily
  surefoot video latest --untrained                trained beside untrained
  surefoot doctor my/env.py:MyEnv                  what is wrong with an env
  surefoot bench CartPole-v1                       how fast training is here
  surefoot explain trpo                            TRPO and all of its settings

commands:
{{commands}}

`surefoot COMMAND --help` shows the flags of a command.
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


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        lines = "\n".join(f"  {name:<10}  {line}" for name, (_, line) in COMMANDS.items())
        print(HELP.format(commands=lines), end="")
        return 0
    if words[0] in ("-V", "--version", "version"):
        print(f"surefoot {__version__}")
        return 0
    command, *rest = words
    if command not in COMMANDS:
        raise UsageError(f"unknown command '{command}'{did_you_mean(command, COMMANDS)} (`surefoot --help` lists them)")
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
