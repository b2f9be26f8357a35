"""The learner whose gradient steps are recorded. Its results equal those of `Learner`, up to rounding."""

from __future__ import annotations

from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, TypeAlias

import torch

from surefoot.engine.cuda.actor import RecordedActor
from surefoot.engine.cuda.fused_passes import CLOSE, FusedPasses, not_fused, terms_of
from surefoot.engine.cuda.head_loss import CLOSE as AT_HEAD
from surefoot.engine.cuda.head_loss import disagreement, head_objective
from surefoot.engine.cuda.looking import Gradients, by_agent_of, look_over, of_gradients
from surefoot.engine.cuda.operations import DeviceOperations
from surefoot.engine.cuda.passes import WHAT, FixedLoss, FixedPasses, critic, joint, shape_of, structure
from surefoot.engine.cuda.statistics import explained_variances, means, spread_of_kl, standardized, weighted_means
from surefoot.engine.losses import Loss
from surefoot.engine.torch.learner import Learner

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.config import ValueFit
    from surefoot.engine.cuda.head_loss import FusedHead
    from surefoot.engine.cuda.passes import Objective
    from surefoot.engine.cuda.recorder import Recorder
    from surefoot.engine.cuda.whole_nets import WholeNets
    from surefoot.engine.losses import LossFunction, Surrogate
    from surefoot.engine.torch.passes import Passes
    from surefoot.types import Batch, Metrics

    Key: TypeAlias = tuple[str, tuple[object, ...], tuple[object, ...], int, int, bool, bool]

MOST_SHAPES = 4  # recorded shapes of batches and losses; a run that changes them again and again gains nothing


class CudaLearner(Learner):
    """A `Learner` whose minibatch steps work on fixed tensors."""

    engine = "cuda"
    operations = DeviceOperations()
    recorder: Recorder
    fixed_length = True  # every rollout has the same number of steps
    nets: WholeNets | None = None

    def connect(
        self, recorder: Recorder, nets: WholeNets | None, *, fixed_length: bool, head: FusedHead | None = None
    ) -> None:
        """`nets`: the policy's, if kernels compute them. `head`: if kernels know what its outputs mean."""
        self.recorder, self.nets, self.fixed_length, self.head = recorder, nets, fixed_length, head
        self._fixed: dict[Key, tuple[FixedPasses, FixedLoss]] = {}
        self.latest: tuple[FixedPasses, FixedLoss] | None = None  # what the last passes used
        fused_steps = self.first_trained == 0 and fixed_length  # gradient steps of the actor that may be fused
        self.actor = RecordedActor(self.policy, recorder, nets, (nets or head) if fused_steps else None)

    def passes(self, loss: LossFunction, batch: Batch, parts: int, number: int, *, normalize: bool) -> Passes:
        fixed = self._passes("joint", loss, batch, parts, number, normalize=normalize)
        return fixed or super().passes(loss, batch, parts, number, normalize=normalize)

    def fit_value(self, loss: Loss, batch: Batch, config: ValueFit) -> list[Metrics]:
        parts, epochs = self.shares.count(config.value_minibatches, batch), config.value_epochs
        fixed = self._passes("critic", loss, batch, parts, epochs, normalize=False)
        if fixed is None:
            return super().fit_value(loss, batch, config)
        for _ in range(epochs):
            fixed.once()
        return fixed.history

    def normalized(self, part: Batch) -> Batch:
        if self.nets is None or part.weight is not None or self.shares.several:
            return super().normalized(part)
        return replace(part, advantage=standardized(part.advantage))

    def mean(self, x: Tensor, weight: Tensor | None) -> Tensor:
        if self.nets is None:
            return super().mean(x, weight)
        return means(x) if weight is None else weighted_means(x.flatten(), weight.flatten())

    def spread_of_kl(self, kl: Tensor, weight: Tensor | None) -> Metrics:
        if self.nets is None or weight is not None or self.shares.several:
            return super().spread_of_kl(kl, weight)
        return spread_of_kl(kl)

    def explained_variance(self, batch: Batch) -> Tensor:
        if self.nets is None or batch.weight is not None or self.shares.several:
            return super().explained_variance(batch)
        return explained_variances(batch.value, batch.value_target)

    @property
    def looks_by_kernels(self) -> bool:
        """Whether an update that is measured reads nothing on the host, so that it can be part of a recording."""
        passes = None if self.latest is None else self.latest[0]
        return isinstance(passes, FusedPasses) and passes.actor is not None

    def half_gradient(self, loss: LossFunction, batch: Batch, passes: int) -> Tensor:
        fixed = self._passes("joint", loss, batch, 1, passes, normalize=False)
        found = fixed.half_gradient() if isinstance(fixed, FusedPasses) else None
        return super().half_gradient(loss, batch, passes) if found is None else found[: self.flat.actor_size]

    def look_over(self, batch: Batch) -> tuple[Tensor, Metrics]:
        look = self.look
        if look is None or look.total is None or look.squares is None or not self.looks_by_kernels:
            return super().look_over(batch)
        assert self.nets is not None
        assert self.latest is not None
        loss = by_agent_of(look.loss, self.latest[1].numbers[None])
        with torch.no_grad():
            kl, looked = look_over(self.policy, self.nets, loss, batch, 1, normalize=look.normalize)
            half = None if look.half is None else look.half[None]
            kept = Gradients(look.start[None], look.total[None], look.squares.reshape(1), look.count, half)
            looked |= of_gradients(kept, self.flat.actor[None], len(batch))
        return kl[0], {name: x[0] for name, x in looked.items()}

    def kl_from(self, batch: Batch) -> Tensor:
        return super().kl_from(batch) if self.nets is None else self.nets.kl_from(batch.obs, batch.dist_params)

    def not_fixed(self, loss: LossFunction, batch: Batch, parts: int) -> str | None:
        """Why the steps on this batch cannot be recorded; None if they can."""
        if not isinstance(loss, Loss):
            return "the algorithm has a loss of its own, which may change from update to update"
        if loss.surrogate is not None and not _pure(loss.surrogate):
            return "the loss depends on variables outside its formula; make them parameters of the surrogate"
        if self.shares.several:
            return "several processes share the gradients"
        if not self.fixed_length:
            return "rollouts of whole episodes differ in length"
        return None if batch.units % parts == 0 else "its minibatches differ in size"

    def _passes(
        self, kind: str, loss: LossFunction, batch: Batch, parts: int, number: int, *, normalize: bool
    ) -> FixedPasses | None:
        """The fixed passes for batches of this shape, begun on this one. None if there can be none."""
        reason = self.not_fixed(loss, batch, parts)
        if reason is None:
            assert isinstance(loss, Loss)
            key = (kind, structure(loss), shape_of(batch), parts, number, normalize, self.max_grad_norm is None)
            if key in self._fixed or len(self._fixed) < MOST_SHAPES:
                passes, fixed = self._fixed.get(key) or self._new(key, kind, loss, batch)
                self.latest = passes, fixed
                if not self.recorder.busy:
                    fixed.load(loss)
                passes.begin(batch)
                return passes
            reason = "its batches or its loss change their form too often"
        self.recorder.refuse(WHAT, reason, batch.obs.device)
        return None

    def _new(self, key: Key, kind: str, loss: Loss, batch: Batch) -> tuple[FixedPasses, FixedLoss]:
        fixed = FixedLoss(loss, batch.obs.device)
        _, _, _, parts, number, normalize, _ = key
        passes: FixedPasses | None = self._fused(kind, fixed, batch, (parts, number, normalize))
        if passes is None:
            objective = self._at_head(fixed, batch, parts) if kind == "joint" else critic(self, fixed.loss)
            optimizer = (self.optimizer.of_critic if kind == "critic" else None) or self.optimizer
            passes = FixedPasses(
                self, objective, batch, parts, number, self.recorder, optimizer=optimizer, normalize=normalize
            )
        self._fixed[key] = passes, fixed
        return passes, fixed

    def _at_head(self, fixed: FixedLoss, batch: Batch, parts: int) -> Objective:
        """The loss by kernels that begin at the policy's head, if they know both and agree; or in PyTorch."""
        plain = joint(self, fixed.loss)
        if self.head is None or self.nets is not None or batch.weight is not None:
            return plain
        terms = terms_of(fixed.loss, "joint", normalize=False, has_critic=self.policy.has_critic)
        if isinstance(terms, str):
            return plain
        some = batch.take(torch.arange(batch.units // parts, dtype=torch.int64, device=batch.obs.device))
        try:
            found = head_objective(self, fixed, self.head, terms)
            error = disagreement(self, found, plain, some)
        except Exception as broken:  # Triton compiles at run time: no compiler, an old GPU, a bug of its own
            reason = f"Triton failed: {str(broken).strip().partition(chr(10))[0]}"
        else:
            if error < AT_HEAD:
                return found
            reason = f"its gradient is off by {error:.1g} here"
        self.recorder.notices.append(f"the loss is not one kernel, which would be faster: {reason}")
        return plain

    def _fused(self, kind: str, fixed: FixedLoss, batch: Batch, how: tuple[int, int, bool]) -> FusedPasses | None:
        """Passes of fused kernels, if they serve and their gradient of this batch is autograd's."""
        parts, number, normalize = how
        if self.nets is None:
            return None
        terms = terms_of(fixed.loss, kind, normalize=normalize, has_critic=self.policy.has_critic)
        reason = not_fused(terms, batch, parts)
        if reason is None and self.optimizer.of_critic is not None:
            reason = "actor and critic have optimizers of their own"
        if reason is None:
            assert not isinstance(terms, str)
            objective = (joint if kind == "joint" else critic)(self, fixed.loss)
            own, optimizer = (self.nets, terms, fixed), self.optimizer
            try:
                passes = FusedPasses(
                    *(self, objective, batch, parts, number, self.recorder),
                    optimizer=optimizer,
                    normalize=normalize,
                    fused=own,
                )
                error = passes.disagreement()
            except Exception as broken:  # Triton compiles at run time: no compiler, an old GPU, a bug of its own
                reason = f"Triton failed: {str(broken).strip().partition(chr(10))[0]}"
            else:
                if error < CLOSE * self.nets.slack:
                    return passes
                reason = f"its gradient is off by {error:.1g} here"
        self.recorder.notices.append(f"the gradient step is not one kernel, which would be faster: {reason}")
        return None


def _pure(surrogate: Surrogate) -> bool:
    """Whether the formula depends on its arguments alone, as far as can be seen."""
    return isinstance(surrogate.formula, FunctionType) and not surrogate.formula.__closure__
