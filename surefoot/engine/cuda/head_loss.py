"""The loss of a policy from its last layer's outputs on, as kernels; what is before it is anything."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias

import torch

from surefoot.engine.cuda.passes import RATIO_ERROR
from surefoot.kernels.heads import CATEGORICAL, GAUSSIAN

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.cuda.passes import FixedLoss, Objective
    from surefoot.engine.torch.learner import Learner
    from surefoot.kernels.fused_update import Terms
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.types import Batch, Metrics

    # (the loss, its terms) from the network's outputs, V and the batch
    AtOutputs: TypeAlias = Callable[[Tensor, Tensor | None, Batch], tuple[Tensor, Tensor]]
    FusedHead: TypeAlias = "PlainHead | PartsHead"

CLOSE = 1e-4  # to autograd's gradient, relative to its norm


class PlainHead:
    """One choice, or one Gaussian whose log std is a parameter: the kernels begin at the network's outputs."""

    def __init__(self, kind: int, outputs: int) -> None:
        """`kind`: 0 for a choice, 1 for a Gaussian."""
        self.kind, self.outputs = kind, outputs

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """log π of actions under stored parameters."""
        from surefoot.kernels.fused_nets import log_prob

        return log_prob(self.kind, self.outputs, params, action)

    def loss(self, policy: ActorCritic, terms: Terms, numbers: Tensor) -> AtOutputs:
        from surefoot.kernels.fused_head import Columns, HeadLoss

        found, mask = HeadLoss(self.kind, self.outputs, terms, numbers), policy.layout.mask

        def loss(outputs: Tensor, value: Tensor | None, part: Batch) -> tuple[Tensor, Tensor]:
            outputs = outputs if mask is None else policy.actions.masked(outputs, part.obs[..., mask] > 0.5)
            return found(outputs, value, policy.log_std, Columns(*columns_of(part)))

        return loss


class PartsHead:
    """Every other action: the kernels begin at the parameters of its parts, which PyTorch computes from the outputs."""

    def __init__(self, policy: ActorCritic) -> None:
        from surefoot.kernels.fused_parts import parts_of

        self.parts = parts_of(policy.actions.kernel_parts, policy.device)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """log π of actions under stored parameters."""
        return self.parts.log_prob(params, action)

    def loss(self, policy: ActorCritic, terms: Terms, numbers: Tensor) -> AtOutputs:
        from surefoot.kernels.fused_head import Columns
        from surefoot.kernels.fused_parts_loss import PartsLoss

        found = PartsLoss(self.parts, terms, numbers)

        def loss(outputs: Tensor, value: Tensor | None, part: Batch) -> tuple[Tensor, Tensor]:
            params = policy.params_from(outputs, policy.log_std, part.obs)
            return found(params, value, Columns(*columns_of(part)))

        return loss


def columns_of(part: Batch) -> tuple[Tensor, ...]:
    """What the kernels read of a minibatch, in the order of their `Columns`."""
    return part.action, part.log_prob, part.dist_params, part.advantage, part.value_target, part.value


def head_of(policy: ActorCritic) -> FusedHead | str:
    """The policy's head for the kernels, or why they do not know it.

    They learn from its actions, so they score them, too: the first ratio is 1.
    """
    actions, config = policy.actions, policy.config
    if find_spec("triton") is None:
        return "Triton is not installed"
    if policy.sde:
        return "gSDE's std depends on the last hidden layer"
    from surefoot.kernels.fused_head import MOST as MOST_OUTPUTS
    from surefoot.kernels.fused_parts import MOST as MOST_PARAMS

    plain = len(actions.kernel_parts) == 1 and actions.kernel_parts[0].size <= MOST_OUTPUTS
    if plain and actions.kernel_parts[0].kind == CATEGORICAL:
        return PlainHead(0, actions.kernel_parts[0].size)
    if plain and actions.kernel_parts[0].kind == GAUSSIAN and config.std == "parameter" and not config.tanh_mean:
        return PlainHead(1, actions.kernel_parts[0].size)
    if actions.num_params > MOST_PARAMS:
        return f"its actions have more than {MOST_PARAMS} parameters"
    return PartsHead(policy)


def head_objective(learner: Learner, fixed: FixedLoss, head: FusedHead, terms: Terms) -> Objective:
    """The loss of actor and critic together, by the kernels."""
    from surefoot.kernels.fused_head import NAMES

    policy, critic = learner.policy, terms.value_weight >= 0
    loss = head.loss(policy, terms, fixed.numbers)
    shown = ["policy_loss", *(["value_loss"] if critic else []), "entropy", *fixed.loss.metrics]

    def objective(part: Batch, opening: bool) -> tuple[Tensor, Metrics]:
        outputs, value = policy.last_outputs(part.obs, part.context)
        total, found = loss(outputs, value if critic else None, part)
        told = dict(zip(NAMES, found.unbind(), strict=True))
        return total, {name: told[name] for name in [*shown, *([RATIO_ERROR] if opening else [])]}

    return objective


def disagreement(learner: Learner, ours: Objective, plain: Objective, part: Batch) -> float:
    """How far our gradient of this batch is from PyTorch's, relative to its norm."""
    trained = [parameter for parameter in learner.policy.parameters() if parameter.requires_grad]
    found = []
    for objective in (ours, plain):
        total, _ = objective(part, True)
        gradients = torch.autograd.grad(total, trained, allow_unused=True)
        found.append(torch.cat([own.flatten() for own in gradients if own is not None]))
    return float((found[0] - found[1]).norm() / found[1].norm().clamp(min=1e-6))
