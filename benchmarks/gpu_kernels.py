"""The fused kernels on a GPU against float64 and against PyTorch, for `gpu.py`."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from surefoot.algorithms.ppo_clip import SURROGATES as OF_PPO
from surefoot.engine.collecting.collector import Collector
from surefoot.engine.collecting.device_storage import DeviceStorage
from surefoot.engine.collecting.stepping import step_all
from surefoot.engine.contract import CollectorOptions
from surefoot.engine.cuda.engine import CudaEngine
from surefoot.engine.cuda.fused_passes import terms_of
from surefoot.engine.cuda.passes import FixedLoss
from surefoot.engine.cuda.whole_nets import WholeNets, whole_nets
from surefoot.engine.losses import LOG_PROB, RATIO, Loss, Surrogate, ratio_of
from surefoot.engine.torch.actor import TorchActor
from surefoot.engine.torch.flat import FlatParameters
from surefoot.envs.config import EnvConfig
from surefoot.envs.device_envs import DeviceEnvs
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.types import Batch, Outputs

CLOSE = 1e-5  # to float64's gradient, relative to its norm
SEEN = spaces.Box(-np.inf, np.inf, (5,), np.float32)
HEADS = {
    "choice": spaces.Discrete(3),
    "choice of 9": spaces.Discrete(9),
    "Gaussian": spaces.Box(-1.0, 1.0, (6,), np.float32),
}
CLASSIC = ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0")


def spo(outputs: Outputs, batch: Batch, epsilon: float) -> Tensor:
    """r·Â − |Â|·(r − 1)² / (2ε)."""
    ratio = ratio_of(outputs, batch)
    return ratio * batch.advantage - batch.advantage.abs() * (ratio - 1.0) ** 2 / (2.0 * epsilon)


LOSSES = {
    "log_prob": Loss(LOG_PROB, value_coef=0.5),
    "ratio, KL, entropy": Loss(RATIO, kl_coef=0.7, value_coef=0.5, entropy_coef=0.02),
    "clip": Loss(OF_PPO["clip"], (0.1,), value_coef=0.5, entropy_coef=0.01),
    "clip, value clip, Huber": Loss(OF_PPO["clip"], (0.1,), value_coef=0.3, value_clip=0.1, value_loss="smooth_l1"),
    "spo": Loss(Surrogate(spo, "spo"), (0.2,), value_coef=0.5),
}


def policy_and_nets(observation: Any, action: Any, **config: Any) -> tuple[ActorCritic, WholeNets, FlatParameters]:
    torch.manual_seed(0)
    policy = ActorCritic(observation, action, PolicyConfig(**config)).cuda()
    flat = FlatParameters(policy)
    nets = whole_nets(policy, flat.vector)
    assert isinstance(nets, WholeNets), nets
    return policy, nets, flat


def batch_for(policy: ActorCritic, size: int) -> Batch:
    """Random rows, with ratios around 1 and a critic that has moved."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda")

    with torch.no_grad():
        obs = draw(size, 5)
        params = policy.action_params(obs)
        params = params + 0.1 * draw(*params.shape)
        action = policy.actions.draw(params, policy.actions.noise((size,), torch.Generator("cuda").manual_seed(1)))
        log_prob = policy.actions.distribution(params).log_prob(action)
    return Batch(obs, action, log_prob, params, draw(size), draw(size), 0.1 * draw(size))


def exact(policy: ActorCritic, loss: Loss, batch: Batch) -> Tensor:
    """The gradient in float64."""
    twin = deepcopy(policy).double()
    names = ("obs", "log_prob", "dist_params", "advantage", "value_target", "value")
    wide = replace(batch, **{name: getattr(batch, name).double() for name in names})
    wide = wide if not wide.action.is_floating_point() else replace(wide, action=wide.action.double())
    total, _ = loss(twin.evaluate(wide.obs, wide.action), wide)
    own = [*twin.actor_parameters(), *twin.critic_parameters()]
    return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(total, own)])


def fused(nets: WholeNets, loss: Loss, batch: Batch, size: int) -> Tensor:
    """The kernels' gradient over the whole batch."""
    from surefoot.kernels.fused_descent import Descent, Optimizer, Report
    from surefoot.kernels.fused_update import Gradients, Rows

    numbers = FixedLoss(loss, batch.obs.device)
    terms = terms_of(loss, "joint", normalize=False, has_critic=True)
    assert not isinstance(terms, str), terms
    columns = (batch.log_prob, batch.dist_params, batch.advantage, batch.value_target, batch.value)
    rows = Rows(batch.obs, batch.action, *columns, None)
    gradients = Gradients(nets.theta, nets.actor, nets.critic, terms, rows, 1, numbers.numbers)
    nothing = nets.theta.new_zeros(size)
    optimizer = Optimizer(nothing, nothing, nothing, nothing, None, 0, size, 1, adam=True, eps=1e-5)
    descent = Descent(gradients, optimizer, Report(nothing, nothing, nothing, nothing))
    gradients.compute(0)
    descent.add_up()
    return descent.total[:size]


CASES = [(head, loss) for head in HEADS for loss in LOSSES]


def check_gradient(case: tuple[str, str]) -> tuple[str, Any]:
    """A head and a loss, with every activation and depth that is fused, against float64."""
    head, name = case
    errors = []
    for activation, hidden, size in (("tanh", (64, 64), 50_000), ("relu", (64, 20), 5_000), ("elu", (33,), 500)):
        policy, nets, flat = policy_and_nets(SEEN, HEADS[head], activation=activation, hidden_sizes=hidden)
        batch = batch_for(policy, size)
        truth = exact(policy, LOSSES[name], batch)
        found = fused(nets, LOSSES[name], batch, len(flat.vector))
        errors.append(float((found - truth).norm() / truth.norm()))
    return f"{head}, {name}", {"error": max(errors), "ok": max(errors) < CLOSE}


def check_rollout(env: str) -> tuple[str, Any]:
    """A rollout by one kernel against PyTorch with the same noise; where a draw is a near tie, an env may differ."""
    from surefoot.kernels.fused_rollout import play

    envs = DeviceEnvs(EnvConfig(env=env, max_episode_steps=40), 500, 3, torch.device("cuda"))
    policy, nets, _ = policy_and_nets(envs.observation_space, envs.action_space)
    options = CollectorOptions(64, torch.Generator("cuda").manual_seed(0))
    collector = Collector(envs, TorchActor(policy), options, CudaEngine().operations, step_all)
    storage = collector.storage
    assert isinstance(storage, DeviceStorage)
    storage.start_with(envs.reset())
    noise, before, found = policy.noise(64, 500, options.generator), [tensor.clone() for tensor in envs.tensors], []
    for kernel in (False, True):
        for tensor, old in zip(envs.tensors, before, strict=True):
            tensor.copy_(old)
        if kernel:
            play(nets.theta, nets.actor, None, envs.world(), noise.rows, storage.places())
        else:
            step_all(collector, noise, None)
        columns = (storage.reward, storage.terminated, storage.truncated)
        found.append(torch.cat([storage.obs[1:].double(), *(column.double()[..., None] for column in columns)], -1))
    off = ((found[0] - found[1]).abs() / (1.0 + found[0].abs())).amax((0, 2))
    alike = float((off < 1e-3).double().mean())
    return env, {"envs_alike": alike, "ok": alike > 0.97}
