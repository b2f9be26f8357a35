"""The envs of results.py, and the settings of the seven algorithms among which it chooses for each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from peers.zoo import PPO as ZOO

Settings: TypeAlias = dict[str, Any]
SHORT_STEPS = 300_000  # of the first round
MUJOCO = ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid", "Swimmer", "Reacher", "InvertedPendulum")
MUJOCO += ("InvertedDoublePendulum", "Pusher", "HumanoidStandup")
BOX2D = {"LunarLander-v3": 1_000_000, "LunarLanderContinuous-v3": 1_000_000, "BipedalWalker-v3": 3_000_000}
STEPS = {f"{name}-v5": 1_000_000 for name in MUJOCO} | BOX2D  # of every row

BOTH = {"normalize_observations": True, "normalize_rewards": True}
# What the algorithms of an env have in common: rollouts, horizon and normalisers.
BASE: dict[str, Settings] = {
    "mujoco": {"num_envs": 8, "rollout_length": 256, "gamma": 0.99, **BOTH},
    "LunarLander-v3": {"num_envs": 16, "rollout_length": 512, "gamma": 0.997, "normalize_rewards": True},
    "LunarLanderContinuous-v3": {"num_envs": 16, "rollout_length": 512, "gamma": 0.997, "normalize_rewards": True},
    "BipedalWalker-v3": {"num_envs": 32, "rollout_length": 512, "gamma": 0.99, **BOTH},
}
# PPO on an env: the shipped presets, or the family's.
PPO: dict[str, Settings] = {
    "mujoco": {"num_epochs": 10, "num_minibatches": 32, "learning_rate": 3e-4, "gae_lambda": 0.95},
    "LunarLander-v3": {"num_epochs": 8, "num_minibatches": 64, "learning_rate": 1e-3, "gae_lambda": 0.98},
    "LunarLanderContinuous-v3": {"num_epochs": 8, "num_minibatches": 64, "learning_rate": 1e-3, "gae_lambda": 0.98},
    "BipedalWalker-v3": {"num_epochs": 10, "num_minibatches": 128, "learning_rate": 3e-4, "gae_lambda": 0.95},
}
LINEAR = {"learning_rate_schedule": "linear"}
NATURAL = {"value_epochs": 20, "value_minibatches": 16, "learning_rate": 1e-3, "cg_iterations": 15, "cg_damping": 0.1}
WIDE = {"hidden_sizes": [256, 256], "activation": "relu"}
QUIET_TANH = {"hidden_sizes": [256, 256], "log_std_init": -1.0, "learning_rate": 1.5e-4}
# Short rollouts of many envs, as Tianshou has them on MuJoCo.
MANY_TRPO = {"num_envs": 64, "rollout_length": 32, "log_std_init": -0.5}
MANY = MANY_TRPO | {"recompute_advantage": True}

# On MuJoCo these went ahead only after 300k steps in full-length runs on seeds 200 to 202, so that a short round
# misjudges them: they get the second round whatever the first one says.
SLOW_STARTERS = ("penalty-quiet", "penalty-few", "trpo-fade")


@dataclass(frozen=True)
class Candidate:
    algo: str
    settings: Settings


def candidates(env: str) -> dict[str, Candidate]:
    """By name; at least one for each algorithm."""
    kind = env if env in BASE else "mujoco"
    base, ppo = BASE[kind], BASE[kind] | PPO[kind] | LINEAR
    natural, short = base | NATURAL, {"rollout_length": 16}
    box = env != "LunarLander-v3"
    found: dict[str, tuple[str, Settings]] = {
        "reinforce": ("reinforce", _without(base, "rollout_length") | {"learning_rate": 3e-3}),
        "vpg": ("vpg", base | {"gae_lambda": 0.95, "learning_rate": 1e-3, "rollout_length": 64} | LINEAR),
        "a2c": ("a2c", base | short | {"gae_lambda": 0.95, "learning_rate": 7e-4} | LINEAR),
        "npg": ("npg", natural),
        "trpo": ("trpo", natural),
        "trpo-far": ("trpo", natural | {"max_kl": 0.04}),
        "ppo-penalty": ("ppo-penalty", ppo),
        "ppo": ("ppo", ppo | ({} if box else {"entropy_coef": 0.005})),
        "ppo-short": ("ppo", ppo | {"gamma": 0.98, "gae_lambda": 0.92}),
        "ppo-long": ("ppo", ppo | {"gamma": 0.999, "gae_lambda": 0.98}),
        "ppo-wide": ("ppo", ppo | WIDE),
        "ppo-spo": ("ppo", ppo | {"surrogate": "spo"}),
        "ppo-adam-rel": ("ppo", ppo | {"optimizer": "adam-rel", "learning_rate": 2 * ppo["learning_rate"]}),
        "ppo-critic": ("ppo", ppo | {"value_epochs": ppo["num_epochs"], "value_lambda": 0.98}),
        "ppo-zoo": ("ppo", from_zoo(ZOO[env])),
    }
    quiet = {"log_std_init": -1.0, "learning_rate": ppo["learning_rate"] / 2}
    if box:
        found["ppo-noise"] = ("ppo", ppo | {"mean_noise": 0.1})
        found["ppo-quiet"] = ("ppo", ppo | WIDE | quiet)
    if kind == "mujoco":
        found["ppo-many"] = ("ppo", ppo | MANY)
        found["ppo-many-short"] = ("ppo", ppo | MANY | {"gamma": 0.98, "gae_lambda": 0.92})
        found["ppo-many-long"] = ("ppo", ppo | MANY | {"gamma": 0.995, "gae_lambda": 0.97})
        found["ppo-many-wide"] = ("ppo", ppo | MANY | WIDE | quiet)
        found["trpo-many"] = ("trpo", natural | MANY_TRPO)
        few = {"num_envs": 2, "rollout_length": 1024}
        found["penalty-quiet"] = ("ppo-penalty", ppo | QUIET_TANH)
        found["penalty-few"] = ("ppo-penalty", ppo | QUIET_TANH | few)
        found["trpo-few"] = ("trpo", natural | few | {"cg_iterations": 25})
        found["trpo-fade"] = ("trpo", natural | few | {"cg_iterations": 25, "max_kl": "linear:0.02:0.001"})
        found["trpo-often"] = ("trpo", natural | {"rollout_length": 128, "value_minibatches": 8})
    if env == "Swimmer-v5":  # a stroke pays off much later
        found["trpo-long"] = ("trpo", natural | {"gamma": 0.9999})
        found["trpo-long-few"] = ("trpo", natural | few | {"gamma": 0.9999, "cg_iterations": 25})
        found["penalty-long"] = ("ppo-penalty", ppo | QUIET_TANH | {"gamma": 0.9999, "gae_lambda": 0.98})
        found["ppo-longest"] = ("ppo", ppo | {"gamma": 0.9999, "gae_lambda": 0.98})
    return {name: Candidate(algo, settings) for name, (algo, settings) in found.items()}


def from_zoo(given: Settings) -> Settings:
    """The RL Zoo's settings of PPO, in our words. What it leaves out is Stable-Baselines3's default."""
    envs, length, batch = given.get("n_envs", 1), given.get("n_steps", 2048), given.get("batch_size", 64)
    network = {}
    if policy := given.get("policy_kwargs"):
        network = {"hidden_sizes": policy["net_arch"]["pi"], "activation": policy["activation_fn"]}
        network |= {"log_std_init": float(policy["log_std_init"])}
    return {
        "num_envs": envs,
        "rollout_length": length,
        "num_minibatches": max(1, envs * length // batch),
        "num_epochs": given.get("n_epochs", 10),
        "gamma": given.get("gamma", 0.99),
        "gae_lambda": given.get("gae_lambda", 0.95),
        "learning_rate": given.get("learning_rate", 3e-4),
        "entropy_coef": given.get("ent_coef", 0.0),
        "clip_ratio": given.get("clip_range", 0.2),
        "max_grad_norm": given.get("max_grad_norm", 0.5),
        "value_coef": given.get("vf_coef", 0.5),
        **network,
        **(BOTH if given.get("normalize") else {}),
    }


def _without(settings: Settings, name: str) -> Settings:
    return {key: value for key, value in settings.items() if key != name}
