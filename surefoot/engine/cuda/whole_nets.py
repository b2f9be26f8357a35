"""A policy whose actor and critic are one Triton kernel each, and why another one's are not."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from surefoot.engine.native.describe import NotServed, describe
from surefoot.engine.precision import PARTS, SLACK
from surefoot.kernels.heads import CATEGORICAL, GAUSSIAN

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.names import Precision
    from surefoot.kernels.fused_nets import Net
    from surefoot.policies.actor_critic import ActorCritic


class WholeNets:
    """Actor and critic without gradients. A row gets the same bits here and where it is learned from."""

    def __init__(self, theta: Tensor, actor: Net, critic: Net | None, slack: float = 1.0, num_envs: int = 1) -> None:
        """`theta`: all parameters of the policy, which may change. `slack`: how much less exact than float32 it is.

        The nets of several agents have `theta` `[agents, P]`; rows are then those of a rollout with `num_envs` each.
        """
        self.theta, self.actor, self.critic, self.slack, self.num_envs = theta, actor, critic, slack, num_envs

    def outputs(self, x: Tensor, each: int | None = None) -> Tensor:
        """The outputs of the actor's last layer, `[..., O]`. `each`: how many rows of an agent follow each other."""
        return self._run(self.actor, x, each)

    def value(self, x: Tensor, each: int | None = None) -> Tensor | None:
        return None if self.critic is None else self._run(self.critic, x, each).squeeze(-1)

    def hidden(self, x: Tensor, each: int) -> Tensor:
        """What the actor's last layer is given, `[..., H]`."""
        from surefoot.kernels.fused_nets import hidden

        found = hidden(self.theta, self.actor, x.reshape(-1, x.shape[-1]).contiguous(), each)
        return found.reshape(*x.shape[:-1], -1)

    def _run(self, net: Net, x: Tensor, each: int | None) -> Tensor:
        from surefoot.kernels.fused_nets import outputs

        found = outputs(self.theta, net, x.reshape(-1, x.shape[-1]).contiguous(), each or self.num_envs)
        return found.reshape(*x.shape[:-1], -1)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """log π of actions under stored parameters."""
        from surefoot.kernels.fused_nets import log_prob

        return log_prob(self.actor.head, self.actor.weights.outputs, params, action)

    def kl_from(self, x: Tensor, params: Tensor) -> Tensor:
        """KL(old‖new) of every row, from the old parameters. Of several agents, all rows of one follow each other."""
        from surefoot.kernels.fused_nets import kl_from

        each = len(x) * self.theta.shape[-1] // self.theta.numel()
        return kl_from(self.theta, self.actor, x.contiguous(), params.contiguous(), each)


def whole_nets(policy: ActorCritic, theta: Tensor, precision: Precision = "float32") -> WholeNets | str:
    """The nets of a policy whose parameters are in `theta`, or why kernels cannot compute them."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    reason = _not_plain(policy)
    if reason is not None:
        return reason
    from surefoot.kernels.fused_linear import ACTIVATIONS, MOST
    from surefoot.kernels.fused_nets import Net, weights_of

    try:
        described = describe(policy)
    except NotServed as error:
        return str(error)
    activation, head = policy.config.activation, described.parts[0]
    if activation not in ACTIVATIONS:
        return f"{activation} is not among its activations"
    actor, critic = weights_of(described.actor), weights_of(described.critic) if described.critic else None
    if actor is None or (described.critic and critic is None):
        return f"it has other than one or two hidden layers, or one of more than {MOST}"
    kind, parts = 0 if head.kind == CATEGORICAL else 1, PARTS[precision]
    own = Net(actor, activation, kind, max(head.log_std, 0), parts)
    value = None if critic is None else Net(critic, activation, -1, parts=parts)
    return WholeNets(theta, own, value, SLACK[precision])


def _not_plain(policy: ActorCritic) -> str | None:
    parts = policy.actions.kernel_parts
    reasons = {
        "it has a memory": policy.memory is not None,
        "its observations go through an encoder": policy.encoder is not None,
        "its critic sees more than its actor": bool(policy.config.critic_obs),
        "actor and critic share a trunk": policy.trunk is not None,
        "its layers are normalised": policy.config.layer_norm,
        "its actions are masked": bool(policy.layout.mask_size),
        "its actions are neither one choice nor one Gaussian": len(parts) != 1
        or parts[0].kind not in (CATEGORICAL, GAUSSIAN),
        "its std is no parameter, or its mean is squashed": bool(policy.actions.num_gaussian)
        and (policy.config.std != "parameter" or policy.config.tanh_mean),
    }
    return next((reason for reason, true in reasons.items() if true), None)
