"""The settings of a policy. No torch import: the command line reads this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from surefoot.errors import UsageError, did_you_mean
from surefoot.ranges import among
from surefoot.settings import Settings, setting
from surefoot.user_code import is_from_python, names_code

# Built-in encoders. Runs of version 0.1.0 recorded `auto` (nature or small), so it is still accepted.
ENCODERS = ("by-size", "nature", "small", "tiny", "impala", "auto")


@dataclass(frozen=True, kw_only=True)
class PolicyConfig(Settings):
    """Networks and the shape of the action distribution."""

    hidden_sizes: tuple[int, ...] = setting((64, 64), "Widths of the hidden layers.", low=1)
    critic_hidden_sizes: tuple[int, ...] | None = setting(
        None, "Widths of the critic's hidden layers; none: the same as hidden_sizes.", low=1
    )
    activation: Literal["tanh", "relu", "elu", "silu"] = setting(
        "tanh", "Activation function.", search=among("tanh", "relu")
    )
    layer_norm: bool = setting(False, "Normalise each hidden layer of the MLPs over its units before the activation.")
    shared_trunk: bool | None = setting(
        None,
        "Share one trunk between actor and critic, each with its own output layer; none: only for images without "
        "critic_obs.",
    )
    encoder: str = setting(
        "by-size",
        "Network for images: nature, small, tiny or impala; by-size: nature from 36×36, tiny up to 16×16, else small. "
        "Or your own encoder of the whole observation: file.py:Class or module:Class.",
        metavar="{by-size,nature,small,tiny,impala}|FILE.py:CLASS",
    )
    embedding_size: int = setting(32, "Embedding size for discrete observations with more than 64 values.", low=1)
    critic_obs: tuple[str, ...] = setting(
        (), "Parts of a Dict observation that only the critic sees, by name (a/b: part b of part a).", metavar="NAME"
    )
    memory: Literal["none", "gru", "lstm"] = setting("none", "Recurrent memory of the policy.")
    memory_size: int = setting(64, "Width of the memory.", low=1)
    action_bounds: Literal["clip", "tanh", "beta"] = setting(
        "clip", "Box actions: a Gaussian, clipped or squashed (tanh) into the bounds, or a Beta distribution."
    )
    init: Literal["orthogonal", "torch"] = setting(
        "orthogonal",
        "Initial weights: orthogonal (√2 hidden, 0.01 actor head, 1 critic head, zero bias) or PyTorch's own.",
    )
    std: Literal["parameter", "state", "gsde"] = setting(
        "parameter",
        "Box actions: one learned log std per dimension; a network head (softplus); or state-dependent exploration "
        "(gSDE), whose noise is a function of the state, redrawn every few steps.",
    )
    sde_resample: int | None = setting(None, "gSDE: steps between noise draws; none: once per rollout.", low=1)
    log_std_init: float = setting(
        0.0, "Box actions: log of the initial standard deviation (gSDE: at features with a mean square of 1)."
    )
    tanh_mean: bool = setting(False, "Box actions: squash the mean into the bounds, centre + half·tanh(·).")
    normalize_observations: bool = setting(
        False,
        "Shift and scale observations by their running mean and std, clipped to ±10.",
        search=among(False, True),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_encoder()
        if self.shared_trunk and self.critic_hidden_sizes is not None:
            raise UsageError("critic_hidden_sizes has no effect with shared_trunk; drop one of the two")
        self._check_critic_obs()
        if self.memory == "none" and self.memory_size != (usual := type(self).memory_size):
            raise UsageError(
                f"memory_size={self.memory_size} has no effect with memory=none; set memory=gru or lstm, "
                f"or leave it at {usual}"
            )
        if self.tanh_mean and self.action_bounds != "clip":
            raise UsageError(f"tanh_mean has no effect with action_bounds={self.action_bounds}; drop one of the two")
        if self.action_bounds == "beta":
            for name in ("std", "log_std_init"):
                if getattr(self, name) != getattr(type(self), name):
                    raise UsageError(f"{name} has no effect with action_bounds=beta, which has no std; drop it")
        if self.sde_resample is not None and self.std != "gsde":
            raise UsageError(f"sde_resample has no effect with std={self.std}; set std=gsde, or drop it")
        if self.std == "state" and self.init == "torch" and self.log_std_init != 0.0:
            raise UsageError("log_std_init has no effect with std=state and init=torch; use init=orthogonal")

    def _check_critic_obs(self) -> None:
        """What actor and critic share would show the actor what only the critic may see."""
        if not self.critic_obs:
            return
        if self.shared_trunk:
            raise UsageError("critic_obs needs a critic of its own; set --no-shared-trunk, or drop it")
        if self.memory != "none":
            raise UsageError("critic_obs needs a critic of its own, but actor and critic share a memory; drop one")
        if self.own_encoder:
            raise UsageError("your own encoder encodes the whole observation, so critic_obs has no effect; drop one")

    def _check_encoder(self) -> None:
        if not self.own_encoder:
            return
        if not names_code(self.encoder) and not self.encoder_from_python:
            raise UsageError(
                f"encoder={self.encoder!r} is not one of: {', '.join(ENCODERS)}"
                f"{did_you_mean(self.encoder, ENCODERS)} (for your own encoder give file.py:Class or module:Class)"
            )
        if self.embedding_size != type(self).embedding_size:
            raise UsageError("embedding_size has no effect with your own encoder; drop one of the two")

    @property
    def chosen_encoder(self) -> bool:
        """Whether the user chose the network for images; otherwise it is chosen by image size."""
        return self.encoder not in ("by-size", "auto")

    @property
    def own_encoder(self) -> bool:
        """Whether the encoder is the user's own, not a built-in one."""
        return self.encoder not in ENCODERS

    @property
    def encoder_from_python(self) -> bool:
        """`<Name>`: a class passed in Python, of which only the name is recorded."""
        return is_from_python(self.encoder)
