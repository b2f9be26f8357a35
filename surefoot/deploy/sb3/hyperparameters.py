"""Which algorithm trained a saved model, and its settings under our names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from surefoot.engine.config import nearest_divisor
from surefoot.errors import UsageError
from surefoot.schema import Misfit, Number, Whole

if TYPE_CHECKING:
    from surefoot.deploy.sb3.archive import SavedModel

MOST_ENVS = 4096  # more would be a mistake in the file
MOST_STEPS = 2**20
MOST_SAMPLES = 2**22  # in a rollout
# The modules whose classes compute what this package knows; a class of anyone else may compute anything.
POLICIES = {
    "stable_baselines3.common.policies": "actor-critic",
    "sb3_contrib.common.recurrent.policies": "recurrent",
    "sb3_contrib.common.maskable.policies": "maskable",
}
EXTRACTORS = ("FlattenExtractor", "NatureCNN", "CombinedExtractor")
ACTIVATIONS = {"Tanh": "tanh", "ReLU": "relu", "ELU": "elu", "SiLU": "silu"}
# Theirs → ours, where the numbers mean the same.
SAME = {"gamma": "gamma", "gae_lambda": "gae_lambda", "ent_coef": "entropy_coef", "n_steps": "rollout_length"}
OF_PPO = {"n_epochs": "num_epochs", "vf_coef": "value_coef", "max_grad_norm": "max_grad_norm"}
OF_A2C = {"vf_coef": "value_coef", "max_grad_norm": "max_grad_norm"}
OF_TRPO = {
    "target_kl": "max_kl",
    "cg_max_steps": "cg_iterations",
    "cg_damping": "cg_damping",
    "line_search_shrinking_factor": "backtrack_factor",
    "line_search_max_iter": "backtrack_tries",
    "n_critic_updates": "value_epochs",
}
OWN = {"ppo": OF_PPO, "a2c": OF_A2C, "trpo": OF_TRPO}


@dataclass
class Hyperparameters:
    """What the data of a model says, in our terms."""

    algo: str  # ppo, a2c or trpo
    kind: str  # actor-critic, recurrent or maskable
    steps: int  # that it was trained for
    policy: Mapping[str, object]  # the readable part of policy_kwargs
    settings: dict[str, object] = field(default_factory=dict)  # the algorithm's own
    notes: list[str] = field(default_factory=list)  # what could not be taken over

    def flag(self, name: str, default: bool) -> bool:
        """A switch among policy_kwargs."""
        value = self.policy.get(name, default)
        if not isinstance(value, bool):
            raise Misfit(f"its policy_kwargs.{name} is not true or false")
        return value


def read_hyperparameters(model: SavedModel) -> Hyperparameters:
    data = model.data
    kind, algo = _kind(data), _algorithm(data)
    steps = data.get("num_timesteps", 0)
    Whole(high=10**15).check(steps, "num_timesteps")
    assert isinstance(steps, int)
    kwargs = data.get("policy_kwargs") or {}
    if not isinstance(kwargs, Mapping):
        raise Misfit("its policy_kwargs is not a table")
    found = Hyperparameters(algo, kind, steps, kwargs)
    _require_known_classes(found)
    for theirs, ours in {**SAME, **OWN[algo]}.items():
        _take(found, data, theirs, ours)
    envs = data.get("n_envs", 1)
    Whole(1, MOST_ENVS).check(envs, "n_envs")
    found.settings["num_envs"] = envs
    _rates(found, data)
    _special(found, data)
    return found


def _kind(data: Mapping[str, object]) -> str:
    described = data.get("policy_class")
    module = described.get("__module__") if isinstance(described, Mapping) else None
    if module not in POLICIES:
        raise UsageError(
            f"its policy is a class of {str(module)[:80]}; only those of Stable-Baselines3 and sb3-contrib for PPO, "
            "A2C, TRPO, RecurrentPPO and MaskablePPO can be imported, because any other may compute anything"
        )
    return POLICIES[str(module)]


def _algorithm(data: Mapping[str, object]) -> str:
    """The file does not name it, but each has settings of its own."""
    if "cg_max_steps" in data:
        return "trpo"
    if "clip_range" in data and "n_epochs" in data:
        return "ppo"
    if "gae_lambda" in data and "n_steps" in data:
        return "a2c"
    raise UsageError("it is not a model of PPO, A2C, TRPO, RecurrentPPO or MaskablePPO")


def _class_name(value: object) -> str:
    """`<class 'torch.nn.modules.activation.ReLU'>` → `torch.nn.modules.activation.ReLU`."""
    match = re.fullmatch(r"<class '([\w.]+)'>", str(value))
    return match[1] if match else str(value)[:80]


def _require_known_classes(found: Hyperparameters) -> None:
    module, _, extractor = _class_name(found.policy.get("features_extractor_class", "")).rpartition(".")
    if extractor and not (module == "stable_baselines3.common.torch_layers" and extractor in EXTRACTORS):
        raise UsageError(f"its features extractor is {module}.{extractor}, code that the file does not hold")
    activation(found)


def activation(found: Hyperparameters) -> str:
    module, _, name = _class_name(found.policy.get("activation_fn", "torch.nn.modules.activation.Tanh")).rpartition(".")
    if module != "torch.nn.modules.activation" or name not in ACTIVATIONS:
        raise UsageError(f"its activation is {module}.{name}; known are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _take(found: Hyperparameters, data: Mapping[str, object], theirs: str, ours: str) -> None:
    value = data.get(theirs)
    if value is None:
        return
    Number().check(value, theirs)
    found.settings[ours] = value


def _constant(data: Mapping[str, object], name: str) -> float | None:
    """A number, or the number of a schedule that is constant; None if it cannot be read."""
    value = data.get(name)
    if isinstance(value, Mapping):
        match = re.fullmatch(r"ConstantSchedule\(val=([-+.e\d]{1,40})\)", str(value.get("value_schedule")))
        try:
            value = float(match[1]) if match else None
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    Number().check(value, name)
    return float(value)


def _rates(found: Hyperparameters, data: Mapping[str, object]) -> None:
    rates = {"learning_rate": "learning_rate"}
    if found.algo == "ppo":
        rates |= {"clip_range": "clip_ratio"} | ({"clip_range_vf": "value_clip"} if data.get("clip_range_vf") else {})
    for theirs, ours in rates.items():
        value = _constant(data, theirs)
        if value is None:
            found.notes.append(f"{theirs} is code in the file, so {ours} has its usual value; set it when you train on")
        else:
            found.settings[ours] = value


def _special(found: Hyperparameters, data: Mapping[str, object]) -> None:
    """Settings whose numbers mean something else there."""
    settings, standardised = found.settings, data.get("normalize_advantage", found.algo != "a2c") is True
    settings["normalize_advantage"] = ("minibatch" if found.algo == "ppo" else "batch") if standardised else "none"
    if found.algo == "trpo":
        part = data.get("sub_sampling_factor", 1)
        Whole(1, 10**6).check(part, "sub_sampling_factor")
        assert isinstance(part, int)
        settings["fisher_fraction"] = 1 / part
    if found.algo == "a2c":
        settings["optimizer"] = "rmsprop" if "RMSprop" in str(found.policy.get("optimizer_class")) else "adam"
    limit = data.get("target_kl")
    if found.algo == "ppo" and limit is not None:
        Number(0.0).check(limit, "target_kl")
        assert isinstance(limit, (int, float))
        settings["stop_kl"] = 1.5 * limit  # where it stops, too
    if found.kind != "recurrent" and found.algo != "a2c":
        _minibatches(found, data, "num_minibatches" if found.algo == "ppo" else "value_minibatches")


def _minibatches(found: Hyperparameters, data: Mapping[str, object], ours: str) -> None:
    """They give a minibatch's size, we their number, which divides the rollout."""
    size, steps, envs = data.get("batch_size", 64), found.settings.get("rollout_length"), found.settings["num_envs"]
    for name, value in (("batch_size", size), ("n_steps", steps)):
        Whole(1, MOST_STEPS).check(value, name)
    assert isinstance(size, int)
    assert isinstance(steps, int)
    assert isinstance(envs, int)
    Whole(1, MOST_SAMPLES).check(steps * envs, "n_steps times n_envs")
    wanted = max(1, round(steps * envs / size))
    parts = wanted if (steps * envs) % wanted == 0 else nearest_divisor(steps * envs, wanted)
    found.settings[ours] = parts
    if parts * size != steps * envs:
        found.notes.append(f"batch_size={size} does not divide {steps * envs} samples; {ours}={parts} is near")
