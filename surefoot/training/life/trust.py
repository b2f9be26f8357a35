"""Code that is named only in a file, and the consent that it needs before it is executed.

Code that the user types is executed. Code named by a run or a config file needs consent first, because a stranger may
have written it, unless the run's signature shows that this user made it (`surefoot.training.life.signature`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from hmac import compare_digest
from pathlib import Path
from typing import NamedTuple

from surefoot.envs.backends import backend_of
from surefoot.errors import SurefootError, UsageError
from surefoot.runs.files import read_json, read_toml
from surefoot.text import one_line
from surefoot.training.config.resolve import Outline, read_outline
from surefoot.training.life.signature import signature_of
from surefoot.user_code import names_code

Trust = bool | Callable[[str], bool]  # yes, no, or a function that asks the user

# The wrappers in gymnasium.wrappers that only change what passes through them. The others write files (RecordVideo) or
# are newer than this list.
HARMLESS = {
    "AddRenderObservation", "AddWhiteNoise", "ArrayConversion", "AtariPreprocessing", "Autoreset", "ClipAction",
    "ClipReward", "DelayObservation", "DiscretizeAction", "DiscretizeObservation", "DtypeObservation",
    "FilterObservation", "FlattenObservation", "FrameStackObservation", "GrayscaleObservation", "HumanRendering",
    "JaxToNumpy", "JaxToTorch", "MaxAndSkipObservation", "NormalizeObservation", "NormalizeReward", "NumpyToTorch",
    "ObstructView", "OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics", "RenderCollection",
    "RepeatAction", "RescaleAction", "RescaleObservation", "ReshapeObservation", "ResizeObservation", "StickyAction",
    "TimeAwareObservation", "TimeLimit", "TransformAction", "TransformObservation", "TransformReward",
}  # fmt: skip


class Code(NamedTuple):
    """What a setting names, and what is executed for it: `file.py:Name`, `module:Name` or a module."""

    setting: str
    name: str
    source: str


def named_code(config: Outline) -> list[Code]:
    """Everything that the settings would import or execute, or that writes files."""
    wrappers = [wrapper.partition("{")[0].strip() for wrapper in config.env.wrappers]
    envs = [("env", config.env.env), ("eval_env", config.run.eval_env or "")]
    found = [Code(setting, name, source) for setting, name in envs if (source := backend_of(name).code(name))]
    found += [Code("wrappers", name, name) for name in wrappers if name not in HARMLESS]
    found += [Code("callbacks", name, name) for name in config.run.callbacks]
    others = [("encoder", config.policy.encoder), ("algo", config.run.algo), ("engine", config.run.engine)]
    return found + [Code(setting, name, name) for setting, name in others if names_code(name)]


def foreign_code(config: Outline) -> list[str]:
    """The code that the user did not type and that is not named by a run of theirs."""
    origins = config.origins
    code = [one for one in named_code(config) if origins.get(one.setting, "default") not in ("given", "default")]
    own = {origin: vouched(config.sources.get(origin)) for origin in {origins[one.setting] for one in code}}
    return [_line(one.setting, one.name) for one in code if one not in own[origins[one.setting]]]


def vouched(config_file: Path | None) -> list[Code]:
    """The code that a run's `config.toml` names, if this user made the run; nothing for any other file."""
    if config_file is None or config_file.name != "config.toml":
        return []
    try:
        said = read_json(config_file.with_name("manifest.json")).get("signature")
        config = read_outline(config_file)
    except SurefootError:
        return []
    code = named_code(config)
    made = signature_of(config, [one.source for one in code])
    if not isinstance(said, str) or made is None:
        return []
    return code if compare_digest(said.encode(errors="replace"), made.encode()) else []


def sign(config: Outline) -> str | None:
    """The signature that later shows that this user ran the code of these settings; None if they name none."""
    code = named_code(config)
    return signature_of(config, [one.source for one in code], new=True) if code else None


def needs_trust(config: Outline, config_file: Path) -> bool:
    """Whether a run with these settings will need `--trust` when it is used again."""
    read = replace(config, origins=dict.fromkeys(config.origins, "file"), sources={"file": config_file})
    return bool(foreign_code(read))


def require_trust(config: Outline, trust: Trust, source: str | Path) -> None:
    """Nothing that only a file names is imported or executed without the user's consent."""
    require_word(foreign_code(config), trust, source)


def require_trusted_encoder(encoder: str, trust: Trust, checkpoint: Path) -> None:
    """The same for the encoder that a policy's description names."""
    own = Code("encoder", encoder, encoder) in vouched(checkpoint.absolute().parent.parent / "config.toml")
    require_word([] if own else [_line("encoder", encoder)], trust, checkpoint)


def agreed_algorithm(config_file: str | Path, trust: Trust) -> str | None:
    """The algorithm that a file names, after the user's consent if it is code; None if it names none.

    The algorithm is handled separately and first, because it determines which settings exist.
    """
    algo = read_toml(config_file).get("algo")
    if not isinstance(algo, str):
        return None
    if names_code(algo) and Code("algo", algo, algo) not in vouched(Path(config_file).absolute()):
        require_word([_line("algo", algo)], trust, config_file)
    return algo


def require_word(code: Sequence[str], trust: Trust, source: str | Path) -> None:
    """Ask for consent to execute `code`, which `source` names."""
    if not code:
        return
    listed = "\n  ".join(code)
    message = (
        f"{one_line(str(source))} names code that would be imported or executed here, or that writes files of its own:"
        f"\n  {listed}\n"
    )
    if not (trust(message) if callable(trust) else trust):
        raise UsageError(f"{message}If you know where it comes from, say so: --trust (trust=True in Python)")


def _line(setting: str, name: str) -> str:
    return f"{setting} = {one_line(name)}"
