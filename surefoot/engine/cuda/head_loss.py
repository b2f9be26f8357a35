"""The loss of policies whose action is one choice or one Gaussian, as kernels; what is before it is anything."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

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

CLOSE = 1e-4  # to autograd's gradient, relative to its norm


class PlainHead:
    """A head that the kernels know. They learn from its actions, so they score them, too: the first ratio is 1."""

    def __init__(self, kind: int, outputs: int) -> None:
        """`kind`: 0 for a choice, 1 for a Gaussian."""
        self.kind, self.outputs = kind, outputs

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """log π of actions under stored parameters."""
        from surefoot.kernels.fused_nets import log_prob

        return log_prob(self.kind, self.outputs, params, action)


def plain_head(policy: ActorCritic) -> PlainHead | str:
    """The policy's head, or why the kernels do not know it."""
    parts = policy.actions.kernel_parts
    if find_spec("triton") is None:
        return "Triton is not installed"
    if len(parts) != 1 or parts[0].kind not in (CATEGORICAL, GAUSSIAN):
        return "its actions are neither one choice nor one Gaussian"
    if policy.actions.num_gaussian and (policy.config.std != "parameter" or policy.config.tanh_mean or policy.sde):
        return "its std is no parameter, or its mean is squashed"
    from surefoot.kernels.fused_head import MOST

    if parts[0].size > MOST:
        return f"its head has more than {MOST} outputs"
    return PlainHead(0 if parts[0].kind == CATEGORICAL else 1, parts[0].size)


def head_objective(learner: Learner, fixed: FixedLoss, head: PlainHead, terms: Terms) -> Objective:
    """The loss of actor and critic together, by the kernels."""
    from surefoot.kernels.fused_head import NAMES, Columns, HeadLoss

    loss, policy = HeadLoss(head.kind, head.outputs, terms, fixed.numbers), learner.policy
    critic, mask = terms.value_weight >= 0, policy.layout.mask
    shown = ["policy_loss", *(["value_loss"] if critic else []), "entropy", *fixed.loss.metrics]

    def objective(part: Batch, opening: bool) -> tuple[Tensor, Metrics]:
        outputs, value = policy.last_outputs(part.obs, part.context)
        outputs = outputs if mask is None else policy.actions.masked(outputs, part.obs[..., mask] > 0.5)
        own = Columns(part.action, part.log_prob, part.dist_params, part.advantage, part.value_target, part.value)
        total, found = loss(outputs, value if critic else None, policy.log_std, own)
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
