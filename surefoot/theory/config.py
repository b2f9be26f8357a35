"""The settings of `surefoot theory`. No NumPy import: the command line reads this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from surefoot.errors import UsageError
from surefoot.settings import Settings, setting

World = Literal["cliff", "grid", "chain", "random"]


@dataclass(frozen=True, kw_only=True)
class WorldConfig(Settings):
    """The MDP."""

    world: World = setting("cliff", "The MDP: the cliff, a gridworld, a chain, or one drawn at random.")
    states: int = setting(5, "Number of states (grid: side length; cliff: cells up to the edge).", low=2, high=200)
    actions: int = setting(3, "Number of actions of a random MDP.", low=2, high=50)
    gamma: float = setting(0.8, "γ: discount.", low=0.0, high=0.999)
    seed: int = setting(0, "Random seed of the MDP and the policy.", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.world == "grid" and not 3 <= self.states <= 14:
            raise UsageError(f"states={self.states}: a grid's side is 3 to 14")


@dataclass(frozen=True, kw_only=True)
class BoundConfig(WorldConfig):
    """`surefoot theory bound`."""


@dataclass(frozen=True, kw_only=True)
class SurrogateConfig(WorldConfig):
    """`surefoot theory surrogate`."""


@dataclass(frozen=True, kw_only=True)
class ClipConfig(Settings):
    """`surefoot theory clip`."""

    clip_ratio: float = setting(0.2, "ε: ratios beyond 1±ε gain nothing more.", above=0.0, high=0.99)


@dataclass(frozen=True, kw_only=True)
class StepSizeConfig(Settings):
    """`surefoot theory step-size`."""

    states: int = setting(8, "Cells up to the edge.", low=2, high=50)
    gamma: float = setting(0.95, "γ: discount.", low=0.0, high=0.999)
    depth: float = setting(10.0, "Cost of the fall.", above=0.0)
    learning_rates: tuple[float, ...] = setting((0.03, 0.1, 3.0), "α of plain gradient ascent.", above=0.0)
    max_kl: float = setting(0.01, "δ of TRPO.", above=0.0)
    clip_ratio: float = setting(0.2, "ε of PPO.", above=0.0, high=0.99)
    updates: int = setting(100, "Updates per method.", low=1, high=10_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= len(self.learning_rates) <= 5:
            raise UsageError("learning_rates: give one to five step sizes")


@dataclass(frozen=True, kw_only=True)
class BaselineConfig(Settings):
    """`surefoot theory baseline`."""

    states: int = setting(6, "Number of states of the random MDP.", low=2, high=50)
    actions: int = setting(3, "Number of actions of the random MDP.", low=2, high=20)
    gamma: float = setting(0.9, "γ: discount.", low=0.0, high=0.99)
    reward_offset: float = setting(1.0, "A constant added to every reward, which changes no gradient.")
    critic_error: float = setting(1.0, "Standard deviation of V̂ − V over the states.", low=0.0)
    seed: int = setting(0, "Random seed of the MDP, the critic's errors and the samples.", low=0)
    trajectories: int = setting(4000, "Trajectories to sample, to check the exact numbers.", low=2, high=1_000_000)


@dataclass(frozen=True, kw_only=True)
class PenaltyConfig(WorldConfig):
    """`surefoot theory penalty`."""

    world: World = "random"
    target_kl: float = setting(0.01, "δ: the KL per update that β is adapted to.", above=0.0, high=1.0)
    kl_coefs: tuple[float, ...] = setting(
        (0.01, 1.0, 1.5, 100.0), "β to start from, one curve each.", low=1e-6, high=1e6
    )
    updates: int = setting(20, "Updates of each curve, all from the same policy.", low=1, high=1000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= len(self.kl_coefs) <= 5:
            raise UsageError("kl_coefs: give one to five values of β")


@dataclass(frozen=True, kw_only=True)
class GaeConfig(Settings):
    """`surefoot theory gae`."""

    states: int = setting(6, "Number of states of the random MDP.", low=2, high=100)
    actions: int = setting(3, "Number of actions of the random MDP.", low=2, high=50)
    gamma: float = setting(0.95, "γ: discount.", low=0.0, high=0.995)
    seed: int = setting(0, "Random seed of the MDP, the critic's errors and the samples.", low=0)
    critic_error: float = setting(1.0, "Standard deviation of V̂ − V over the states.", low=0.0)
    trajectories: int = setting(4000, "Trajectories to sample, to check the exact curves.", low=2, high=1_000_000)
