"""The settings that versus_peers.py compares, each as every side spells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CHEAP = ("--engine native", "--engine native --threads 2")
COSTLY = (*CHEAP, "--engine native --workers 2", "--engine native --workers 2 --threads 2")


@dataclass(frozen=True)
class Setting:
    """One comparison. Steps are chosen so that either side trains for some seconds."""

    name: str
    says: str
    env: str
    algo: str
    num_envs: int
    rollout_length: int
    ours: dict[str, Any]  # settings of `surefoot train` that are not its defaults
    theirs: dict[str, Any]  # keywords of the peer's constructor
    steps: dict[str, int]  # by side
    goals: dict[str, float]  # the ratio to reach, by peer
    peers: tuple[str, ...]
    peer_algo: str = "PPO"
    linear: tuple[str, ...] = ()
    normalize: bool = False
    candidates: tuple[str, ...] = CHEAP  # flags that a user with two cores may add; the fastest is used
    jax: dict[str, int] = field(default_factory=dict)  # epochs, minibatches

    def our_words(self, steps: int, seed: int) -> list[str]:
        words = ["surefoot", "train", self.env, "--algo", self.algo, "--preset", "none", "--eval-episodes", "0"]
        shape = {"num_envs": self.num_envs, "rollout_length": self.rollout_length}
        for name, value in (shape | self.ours | {"total_steps": steps, "seed": seed}).items():
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value is True else [flag, f"{value}"]
        return words

    def their_spec(self, steps: int, seed: int) -> dict[str, Any]:
        return {
            "algo": self.peer_algo,
            "env": self.env,
            "num_envs": self.num_envs,
            "total_steps": steps,
            "seed": seed,
            "normalize": self.normalize,
            "linear": list(self.linear),
            "settings": {"n_steps": self.rollout_length, **self.theirs},
        }

    def jax_spec(self, steps: int, seed: int) -> dict[str, Any]:
        shape = {"num_envs": self.num_envs, "rollout_length": self.rollout_length, **self.jax}
        return shape | {"iterations": max(1, steps // (self.num_envs * self.rollout_length)), "seed": seed}


SETTINGS = [
    Setting(
        name="cartpole-zoo",
        says="CartPole-v1, 8 × 32, 20 epochs of batch 256 (RL Zoo)",
        env="CartPole-v1",
        algo="ppo",
        num_envs=8,
        rollout_length=32,
        ours={
            "num_epochs": 20,
            "num_minibatches": 1,
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "learning_rate": 1e-3,
            "learning_rate_schedule": "linear",
            "clip_ratio": 0.2,
            "clip_ratio_schedule": "linear",
        },
        theirs={
            "batch_size": 256,
            "n_epochs": 20,
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "ent_coef": 0.0,
            "learning_rate": 1e-3,
            "clip_range": 0.2,
        },
        linear=("learning_rate", "clip_range"),
        steps={"surefoot": 400_000, "sb3": 40_000, "sbx": 50_000, "jax": 300_000},
        goals={"sb3": 15.0, "jax": 1.5},
        peers=("sb3", "sbx", "jax"),
        jax={"epochs": 20, "minibatches": 1},
    ),
    Setting(
        name="cartpole-cleanrl",
        says="CartPole-v1, 4 × 128, 4 epochs × 4 minibatches (CleanRL)",
        env="CartPole-v1",
        algo="ppo",
        num_envs=4,
        rollout_length=128,
        ours={
            "num_epochs": 4,
            "num_minibatches": 4,
            "learning_rate": 2.5e-4,
            "learning_rate_schedule": "linear",
            "entropy_coef": 0.01,
            "value_clip": 0.2,
        },
        theirs={
            "batch_size": 128,
            "n_epochs": 4,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "ent_coef": 0.01,
            "learning_rate": 2.5e-4,
            "clip_range": 0.2,
            "clip_range_vf": 0.2,
        },
        linear=("learning_rate",),
        steps={"surefoot": 1_500_000, "sb3": 60_000, "sbx": 60_000, "jax": 1_000_000},
        goals={"sb3": 30.0, "jax": 1.5},
        peers=("sb3", "sbx", "jax"),
        jax={"epochs": 4, "minibatches": 4},
    ),
    Setting(
        name="pendulum-zoo",
        says="Pendulum-v1, 4 × 1024, 10 epochs of batch 64, plain Gaussian (RL Zoo without gSDE)",
        env="Pendulum-v1",
        algo="ppo",
        num_envs=4,
        rollout_length=1024,
        ours={"num_epochs": 10, "num_minibatches": 64, "gamma": 0.9, "learning_rate": 1e-3},
        theirs={
            "batch_size": 64,
            "n_epochs": 10,
            "gamma": 0.9,
            "gae_lambda": 0.95,
            "ent_coef": 0.0,
            "learning_rate": 1e-3,
            "clip_range": 0.2,
        },
        steps={"surefoot": 409_600, "sb3": 28_672, "sbx": 40_960},
        goals={"sb3": 15.0},
        peers=("sb3", "sbx"),
    ),
    *(
        Setting(
            name=name,
            says=f"{env}, 8 × 512, 10 epochs of batch 64, observations and rewards normalised",
            env=env,
            algo="ppo",
            num_envs=8,
            rollout_length=512,
            ours={"num_epochs": 10, "num_minibatches": 64, "normalize_observations": True, "normalize_rewards": True},
            theirs={
                "batch_size": 64,
                "n_epochs": 10,
                "gamma": 0.99,
                "gae_lambda": 0.95,
                "ent_coef": 0.0,
                "learning_rate": 3e-4,
                "clip_range": 0.2,
            },
            normalize=True,
            steps={"surefoot": steps, "sb3": 28_672, "sbx": 40_960},
            goals={"sb3": goal},
            peers=("sb3", "sbx"),
            candidates=COSTLY,
        )
        for name, env, steps, goal in (
            ("halfcheetah", "HalfCheetah-v5", 122_880, 8.0),
            ("hopper", "Hopper-v5", 122_880, 6.0),
            ("walker2d", "Walker2d-v5", 122_880, 4.0),
            ("ant", "Ant-v5", 81_920, 3.5),
            ("humanoid", "Humanoid-v5", 40_960, 3.0),
        )
    ),
    Setting(
        name="lunarlander-zoo",
        says="LunarLander-v3, 16 × 1024, 4 epochs of batch 64 (RL Zoo)",
        env="LunarLander-v3",
        algo="ppo",
        num_envs=16,
        rollout_length=1024,
        ours={
            "num_epochs": 4,
            "num_minibatches": 256,
            "gamma": 0.999,
            "gae_lambda": 0.98,
            "entropy_coef": 0.01,
        },
        theirs={
            "batch_size": 64,
            "n_epochs": 4,
            "gamma": 0.999,
            "gae_lambda": 0.98,
            "ent_coef": 0.01,
            "learning_rate": 3e-4,
            "clip_range": 0.2,
        },
        steps={"surefoot": 196_608, "sb3": 49_152, "sbx": 65_536},
        goals={"sb3": 6.0},
        peers=("sb3", "sbx"),
        candidates=COSTLY,
    ),
    Setting(
        name="trpo-cartpole",
        says="TRPO, CartPole-v1, 2 × 512, 20 passes of the critic in batches of 512",
        env="CartPole-v1",
        algo="trpo",
        num_envs=2,
        rollout_length=512,
        ours={
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "learning_rate": 1e-3,
            "value_epochs": 20,
            "value_minibatches": 2,
            "cg_iterations": 15,
            "cg_damping": 1e-3,
        },
        theirs={
            "batch_size": 512,
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "learning_rate": 1e-3,
            "n_critic_updates": 20,
            "cg_max_steps": 15,
            "cg_damping": 1e-3,
            "target_kl": 0.01,
        },
        peer_algo="TRPO",
        steps={"surefoot": 307_200, "sb3_contrib": 30_720},
        goals={"sb3_contrib": 8.0},
        peers=("sb3_contrib",),
    ),
    Setting(
        name="a2c-cartpole",
        says="A2C, CartPole-v1, 8 × 5",
        env="CartPole-v1",
        algo="a2c",
        num_envs=8,
        rollout_length=5,
        ours={"learning_rate": 7e-4, "optimizer": "rmsprop"},
        theirs={"gamma": 0.99, "gae_lambda": 1.0, "ent_coef": 0.0, "learning_rate": 7e-4},
        peer_algo="A2C",
        steps={"surefoot": 800_000, "sb3": 80_000},
        goals={"sb3": 8.0},
        peers=("sb3",),
    ),
]
