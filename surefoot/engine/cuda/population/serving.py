"""Which runs can be a population."""

from __future__ import annotations

from typing import TYPE_CHECKING

from surefoot.engine.cuda.iteration import not_whole
from surefoot.envs.device_envs import DeviceEnvs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from surefoot.engine.cuda.population.iteration import Parts


def not_together(several: Sequence[Parts]) -> str | None:
    """Why these runs cannot be done at once; None if they can."""
    for collector, learner, algorithm in several:
        if not isinstance(collector.envs, DeviceEnvs):
            return f"{collector.envs} is not stepped on the GPU, as classic control is"
        if learner.nets is None:
            return "the policy is not computed by fused kernels (one or two hidden layers of up to 64 units)"
        if (reason := not_whole(collector, learner, algorithm)) is not None:
            return f"an iteration is not one graph: {reason}"
    return None if len({_form(part) for part in several}) == 1 else "they differ in more than their seeds"


def _form(part: Parts) -> tuple[object, ...]:
    """What all members must have in common."""
    collector, learner, algorithm = part
    envs, nets = collector.envs, learner.nets
    assert isinstance(envs, DeviceEnvs)
    assert nets is not None
    world = envs.world()
    env = (world.kind, world.limit, world.params, world.bounds, envs.num_envs, collector.length)
    rewards = (collector.options.reward_scale, collector.options.sign_rewards, collector.options.reward_gamma)
    normalized = learner.policy.normalizer is not None
    return (*env, *rewards, normalized, nets.actor, nets.critic, len(learner.flat.vector), repr(algorithm.config))
