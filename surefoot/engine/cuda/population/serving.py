"""Which runs can be a population."""

from __future__ import annotations

from typing import TYPE_CHECKING

from surefoot.engine.cuda.fused_passes import terms_of
from surefoot.engine.cuda.iteration import not_whole
from surefoot.engine.cuda.passes import structure
from surefoot.engine.own_numbers import OF_ALGORITHM
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
        loss = algorithm.terms(1.0)
        assert loss is not None, "`not_whole` has checked it"
        terms = terms_of(loss, "joint", normalize=False, has_critic=learner.policy.has_critic)
        if isinstance(terms, str):  # every run would do all of its updates by itself
            return f"a gradient step is not one kernel: {terms}"
    alike = len({_form(part) for part in several}) == 1
    return None if alike else f"they differ in more than their seeds and {', '.join(OF_ALGORITHM)}"


def _form(part: Parts) -> tuple[object, ...]:
    """What all members must have in common."""
    collector, learner, algorithm = part
    envs, nets = collector.envs, learner.nets
    assert isinstance(envs, DeviceEnvs)
    assert nets is not None
    world = envs.world()
    env = (world.kind, world.limit, world.params, world.bounds, envs.num_envs, collector.length)
    rewards = (collector.options.sign_rewards, collector.options.reward_gamma is None)
    normalized = learner.policy.normalizer is not None
    settings = [f"{name}={x!r}" for name, x in algorithm.config.as_dict().items() if name not in OF_ALGORITHM]
    return (*env, *rewards, normalized, nets.actor, nets.critic, len(learner.flat.vector), *settings)


def kernels_of(part: Parts) -> tuple[object, ...]:
    """Equal for members that the same kernels serve: whether a number is there is compiled in, its value is told.

    Without the term of a weight that is 0, results may be rounded differently.
    """
    _, learner, algorithm = part
    loss, optimizer = algorithm.terms(1.0), learner.optimizer
    assert loss is not None, "`not_whole` has checked it"
    waits = learner.adaptive_kl is not None  # its next rate depends on this update, so others would wait, too
    return structure(loss), learner.max_grad_norm is None, len(optimizer.ranges), waits
