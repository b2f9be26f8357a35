"""`surefoot COMMAND …`: finds the command, runs it, turns errors into messages and exit codes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from surefoot import __version__
from surefoot.cli.interrupts import interrupted_imports
from surefoot.cli.limits import advice, is_out_of_memory, make_do_with_few_threads, require_room_for_torch
from surefoot.cli.streams import standing_streams
from surefoot.engine.torchrun import dismiss_launcher, is_one_of_several, may_speak, quieten_torch
from surefoot.envs.forks import Original
from surefoot.errors import CodeError, PeerError, SurefootError, UsageError, did_you_mean
from surefoot.limits import NO_MORE, is_out_of_processes
from surefoot.text import print
from surefoot.training.life.signals import exit_code
from surefoot.training.reports.streams import Outlet

COMMANDS = {  # name -> (module, one line)
    "train": ("surefoot.cli.train", "train a policy"),
    "resume": ("surefoot.cli.resume", "continue an interrupted run, or give a finished one more steps"),
    "sweep": ("surefoot.cli.sweep", "train many runs, several at a time"),
    "tune": ("surefoot.cli.tune", "search for better settings, and check them on fresh seeds"),
    "eval": ("surefoot.cli.eval", "evaluate the policy of a run"),
    "video": ("surefoot.cli.video", "record a video of a run's policy"),
    "export": ("surefoot.cli.export", "write a run's policy as C or ONNX, for other programs"),
    "serve": ("surefoot.cli.serve", "give a run's actions to other programs, over HTTP"),
    "pack": ("surefoot.cli.pack", "write a run as one zip file to send"),
    "unpack": ("surefoot.cli.unpack", "unpack a zip file into a run"),
    "import-sb3": ("surefoot.cli.import_sb3", "turn a model that Stable-Baselines3 saved into a run"),
    "plot": ("surefoot.cli.plot", "draw learning curves of runs"),
    "compare": ("surefoot.cli.compare", "tell which method is better, and how certain that is"),
    "ui": ("surefoot.cli.ui", "show runs live in the browser"),
    "replay": ("surefoot.cli.replay", "rebuild one update of a run and look inside it"),
    "diff": ("surefoot.cli.diff", "find where two runs first differ"),
    "diagnose": ("surefoot.cli.diagnose", "tell why a run is not learning, and what to try"),
    "doctor": ("surefoot.cli.doctor", "check this installation, or an environment before training on it"),
    "conformance": ("surefoot.cli.conformance", "check a library or script against closed-form numbers"),
    "bench": ("surefoot.cli.bench", "measure how fast this installation trains"),
    "explain": ("surefoot.cli.explain", "explain an algorithm, a setting, a metric or a word"),
    "theory": ("surefoot.cli.theory", "compute the lecture's formulas exactly on small MDPs"),
    "list": ("surefoot.cli.list", "list algorithms, environments, presets or runs"),
    "completion": ("surefoot.cli.completion", "print a script that completes commands in bash, zsh or fish"),
}

WITH_TORCH = ("train", "resume", "sweep", "tune", "eval", "video", "export", "import-sb3", "bench", "replay", "diff")

HELP = f"""surefoot {__version__}: policy gradients that don't step off the cliff

  surefoot train CartPole-v1                       PPO with the tuned preset
  surefoot train Pendulum-v1 --algo trpo --seed 3  another algorithm and seed
  surefoot eval latest                             evaluate the newest run
  surefoot video latest --untrained                trained next to untrained
  surefoot export latest --to c                    the policy as a C file
  surefoot sweep --env CartPole-v1 --seeds 0..9    ten runs, several at a time
  surefoot tune LunarLander-v3 --budget 1h         search for better settings
  surefoot plot CartPole-v1                        learning curves of its runs
  surefoot compare CartPole-v1                     which algorithm is better
  surefoot ui --open                               runs in the browser, live
  surefoot diagnose latest                         why it is not learning
  surefoot doctor my/env.py:MyEnv                  check an env for problems
  surefoot bench CartPole-v1                       measure training speed
  surefoot explain trpo                            TRPO and all its settings

commands:
{{commands}}

`surefoot COMMAND --help` shows the flags of a command.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a pipe on Windows, for example, may not support → or π
        sys.stdout.reconfigure(errors="backslashreplace")
    with standing_streams() as out:
        try:
            code = _run(words)
        except SystemExit as done:  # raised by argparse after --help
            if _lost(words, out):
                return 1
            raise done
        return code or int(_lost(words, out))


def _run(words: list[str]) -> int:
    try:
        with Original(), interrupted_imports():
            return _dispatch(words)
    except SurefootError as error:
        if not may_speak(error):
            if isinstance(error, PeerError):  # the process that failed and said so cannot name the run's files
                _say(error)
            return _left(error)
        _say(error, f"surefoot: {error}")
        if isinstance(error, CodeError) or isinstance(error.__cause__, SystemExit):
            _show_cause(error.__cause__)
        return _left(error)
    except KeyboardInterrupt as interrupt:
        if not may_speak(interrupt):
            return exit_code(interrupt)
        print(f"surefoot: interrupted {interrupt}".rstrip(), file=sys.stderr)
        return exit_code(interrupt)
    except (ImportError, MemoryError, OSError, RuntimeError) as error:
        if is_out_of_processes(error):
            said = f"surefoot: {NO_MORE}"
        elif is_out_of_memory(error):
            said = f"surefoot: out of memory: {str(error) or 'an allocation failed'}; {advice()}"
        else:
            raise
        _say(error, said)
        return 1


def _say(error: BaseException, *lines: str) -> None:
    for line in (*lines, *getattr(error, "__notes__", ())):
        print(line, file=sys.stderr)


def _left(error: SurefootError) -> int:
    """The exit code. Connections to a lost process may never close, so a process that has lost one ends here."""
    if isinstance(error, PeerError):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if error.cut_off:
            dismiss_launcher()
        os._exit(error.exit_code)
    return error.exit_code


def _lost(words: list[str], out: Outlet) -> bool:
    """Whether output was lost that is the purpose of the command. A closed pipe does not count."""
    out.flush()
    if not isinstance(out.error, OSError) or isinstance(out.error, BrokenPipeError):
        return False
    trained = words[:1] in (["train"], ["resume"]) and not {"--json", "--dry-run", "--help", "-h"} & set(words)
    kept = "; everything is saved in the run directory" if trained else ""
    print(f"surefoot: standard output cannot be written: {out.error.strerror}{kept}", file=sys.stderr)
    return not trained


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        lines = "\n".join(f"  {name:<11}  {line}" for name, (_, line) in COMMANDS.items())
        print(HELP.format(commands=lines), end="")
        return 0
    if words[0] in ("-V", "--version", "version"):
        print(f"surefoot {__version__}")
        return 0
    command, *rest = words
    if command not in COMMANDS:
        raise UsageError(f"unknown command '{command}'{did_you_mean(command, COMMANDS)} (`surefoot --help` lists them)")
    if is_one_of_several():
        quieten_torch()
        if command in ("sweep", "tune"):
            raise UsageError(
                f"torchrun would start the same {command} several times; drop torchrun: a {command} has its own pool"
            )
    make_do_with_few_threads()
    if command in WITH_TORCH and not {"-h", "--help", "--dry-run"} & set(rest):
        require_room_for_torch()
    code: int = import_module(COMMANDS[command][0]).run(rest)
    return code


def _show_cause(cause: BaseException | None) -> None:
    """The traceback of the user's own code, without our frames before it."""
    if cause is None:
        return
    import traceback

    ours, trace = os.path.dirname(os.path.dirname(__file__)), cause.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename.startswith(ours):
        trace = trace.tb_next
    print("".join(traceback.format_exception(cause.with_traceback(trace))), end="", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
