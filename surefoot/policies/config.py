"""The settings of a policy. No torch import: the command line reads this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from surefoot.errors import UsageError
from surefoot.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class PolicyConfig(Settings):
    """Networks and the shape of the action distribution."""

    hidden_sizes: tuple[int, ...] = setting((64, 64), "Widths of the hidden layers.", low=1)
    critic_hidden_sizes: tuple[int, ...] | None = setting(
        None, "Widths of the critic's own hidden layers; none: as hidden_sizes.", low=1
    )
    activation: Literal["tanh", "relu", "elu", "silu"] = setting("tanh", "Between the layers.")
    shared_trunk: bool | None = setting(
        None, "One trunk for actor and critic, each with its own last layer; none: where there are images."
    )
    encoder: Literal["auto", "nature", "impala"] = setting(
        "auto", "Network for images; auto: nature's, or a smaller one for small images."
    )
    embedding_size: int = setting(32, "Discrete observations of more than 64 values: numbers for each.", low=1)
    memory: Literal["none", "gru", "lstm"] = setting("none", "What the policy remembers with over an episode.")
    memory_size: int = setting(64, "Width of the memory.", low=1)
    action_bounds: Literal["clip", "tanh", "beta"] = setting(
        "clip", "Box actions: a Gaussian clipped or squashed into the bounds, or a Beta distribution."
    )
    init: Literal["orthogonal", "torch"] = setting(
        "orthogonal", "Orthogonal (√2 hidden, 0.01 actor head, 1 critic head, zero bias) or PyTorch's own."
    )
    std: Literal["parameter", "state"] = setting(
        "parameter", "Box actions: one learned log std per dimension, or softplus of a head of the network."
    )
    log_std_init: float = setting(0.0, "Box actions: log of the initial standard deviation.")
    tanh_mean: bool = setting(False, "Box actions: squash the mean into the bounds, centre + half·tanh(·).")
    normalize_observations: bool = setting(
        False, "Shift and scale observations by their running mean and std, clipped to ±10."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shared_trunk and self.critic_hidden_sizes is not None:
            raise UsageError("critic_hidden_sizes has no effect with shared_trunk; drop one of the two")
        if self.tanh_mean and self.action_bounds != "clip":
            raise UsageError(f"tanh_mean has no effect with action_bounds={self.action_bounds}; drop one of the two")
        if self.std == "state" and self.init == "torch" and self.log_std_init != 0.0:
            raise UsageError("log_std_init has no effect with std=state and init=torch; use init=orthogonal")
