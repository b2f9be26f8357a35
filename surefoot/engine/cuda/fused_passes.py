"""Passes whose gradient steps are Triton kernels from the first layer to the optimizer, if policy and loss allow it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from surefoot.engine.cuda.fused_steps import COLUMNS, Places, Steps
from surefoot.engine.cuda.passes import GRAD_NORM, NUMBERS, FixedPasses, given
from surefoot.engine.torch.instruments import rows_of_half

if TYPE_CHECKING:
    from surefoot.engine.cuda.passes import FixedLoss, Objective
    from surefoot.engine.cuda.recorder import Recorder, Work
    from surefoot.engine.cuda.whole_nets import WholeNets
    from surefoot.engine.losses import Loss
    from surefoot.engine.torch.learner import Learner
    from surefoot.engine.torch.optimizers import FlatOptimizer
    from surefoot.kernels.fused_update import Terms
    from surefoot.types import Batch

CLOSE = 1e-3  # to autograd's gradient, relative to its norm, which may be small; kernels are within 1e-5 of the terms
WHAT = "the gradient step"
REPORTED = ((), ("approx_kl",), ("approx_kl", "clip_fraction"))  # what the kernels report besides the terms


def terms_of(loss: Loss, kind: str, *, normalize: bool, has_critic: bool) -> Terms | str:
    """A loss in the kernels' terms, with the positions of its numbers in `FixedLoss`; or why they cannot compute it."""
    from surefoot.kernels.fused_loss import SURROGATES
    from surefoot.kernels.fused_update import Terms

    names = [f"parameter {at}" for at in range(len(loss.parameters))] + [name for name in NUMBERS if given(loss, name)]
    at = {name: position for position, name in enumerate(names)}
    near, huber = at.get("value_clip", -1), loss.value_loss != "mse"
    if kind == "critic":
        return Terms(None, value_clip=near, huber=huber)
    surrogate = None if loss.surrogate is None else loss.surrogate.kernel
    if surrogate not in SURROGATES or loss.metrics not in REPORTED:
        return "its kernels do not know this loss"
    if loss.value_coef is not None and not (has_critic and "value_coef" in at):
        return "the critic's loss has no weight"
    return Terms(
        surrogate,
        epsilon=at.get("parameter 0", -1),
        beta=at.get("kl_coef", -1),
        entropy=at.get("entropy_coef", -1),
        value_weight=at.get("value_coef", -1),
        value_clip=near,
        huber=huber,
        normalize=normalize,
        approx_kl="approx_kl" in loss.metrics,
        clip_fraction="clip_fraction" in loss.metrics,
    )


def not_fused(terms: Terms | str, batch: Batch, parts: int) -> str | None:
    """Why the steps on these batches are not fused; None if they are."""
    if isinstance(terms, str):
        return terms
    if batch.weight is not None:
        return "some of its steps may be no transitions"
    return None if len(batch) // parts > 1 else "a minibatch is one sample"


class FusedPasses(FixedPasses):
    """`FixedPasses` without autograd: a whole pass is one graph of three kernels for each minibatch."""

    def __init__(
        self,
        learner: Learner,
        objective: Objective,
        batch: Batch,
        parts: int,
        number: int,
        recorder: Recorder,
        *,
        optimizer: FlatOptimizer,
        normalize: bool,
        fused: tuple[WholeNets, Terms, FixedLoss],
    ) -> None:
        super().__init__(learner, objective, batch, parts, number, recorder, optimizer=optimizer, normalize=normalize)
        nets, terms, loss = fused
        self.loss, self.terms = loss, terms
        joint = terms.surrogate is not None
        critic = nets.critic if terms.value_weight >= 0 or not joint else None
        self.actor, self.critic = nets.actor if joint else None, critic
        self._names = ["policy_loss"] if joint else []
        self._names += ["value_loss"] if critic is not None else []
        self._names += ["entropy", *loss.loss.metrics] if joint else []
        self._names.append(GRAD_NORM)
        self._sums = self._error.new_zeros(len(self._names))
        self._drawn_from: torch.Generator | None = None
        self._steps = self._built()
        self.halves = self.parts == 1 and joint and len(batch) > 3  # whether a half of the batch has a gradient
        self._half = Half(self, learner.flat.vector, self.batch, loss.numbers) if self.halves else None

    @property
    def names(self) -> list[str]:
        """The names of the metrics that the kernels report, in order."""
        return self._names

    def _built(self) -> Steps:
        planned, own = self.optimizer, self.optimizer.optimizer
        places = Places(
            self.learner.flat.vector,
            self.loss.numbers,
            own.first,
            own.second,
            planned.table,
            planned.index,
            self.limit,
            self._sums,
            self._error,
            self._total,
            self._squares,
        )
        return Steps(self, self.batch, self._order, places)

    def begin(self, batch: Batch) -> None:
        if self._drawn_from is not self.learner.generator:  # a resumed run may have another one
            self._drawn_from, self._works = self.learner.generator, {}
        super().begin(batch)

    def _recorded(self, opening: bool) -> Work:
        learner, device = self.learner, self._order.device
        changed = [learner.flat.vector, *self.optimizer.changed, self._sums, self._error, self._total, self._squares]
        generators = [learner.generator] if self._draws else []
        return self.recorder.record(WHAT, lambda: self._pass(opening), device, changed, generators)

    @property
    def _draws(self) -> bool:
        """Whether a pass shuffles its minibatches itself, as part of its graph."""
        generator = self.learner.generator
        return self.parts > 1 and self.learner.observer is None and generator.device.type == self._order.device.type

    def _shuffle(self) -> None:
        if not self._draws:
            super()._shuffle()

    def _all_steps(self, measured: bool) -> None:
        opening = self._count == 0 or measured
        if self.recorder.busy:  # the pass is recorded as a part of an iteration
            self._pass(opening)
        else:
            self._works[opening]()
        self._count += self.parts

    def _pass(self, opening: bool) -> None:
        if self._draws:
            super()._shuffle()
        self._steps.once(opening=opening)

    def half_gradient(self) -> Tensor | None:
        """The gradient over one half of the batch, whatever its minibatches; None if there is no such half."""
        return None if self._half is None else self._half.gradient()

    def gradient(self) -> Tensor:
        """The gradient of the first minibatch."""
        return self._steps.gradient()

    def disagreement(self) -> float:
        """How far the kernels' gradient of the first minibatch is from autograd's, relative to its norm."""
        flat = self.learner.flat
        self._order.copy_(torch.arange(len(self._order), dtype=torch.int64, device=self._order.device))
        ours = self.gradient()
        flat.gradient.zero_()
        self.objective(self._minibatch(), False)[0].backward()  # type: ignore[no-untyped-call]
        theirs = flat.gradient
        return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-6))


class Half:
    """One half of a batch, of which an update that is measured wants the gradient. Of several agents, each one's."""

    def __init__(self, passes: FusedPasses, theta: Tensor, batch: Batch, numbers: Tensor) -> None:
        """`passes`: of one agent. The others: of all, with the samples of one agent after those of another."""
        from surefoot.kernels.fused_update import Gradients, Rows

        agents, size = theta.numel() // theta.shape[-1], len(passes.batch)
        index = torch.from_numpy(rows_of_half(size, passes.batch.num_envs)).to(theta.device)
        begins = torch.arange(agents, dtype=torch.int64, device=theta.device) * size
        self._index = (begins[:, None] + index).flatten()
        self._whole = [getattr(batch, name) for name in COLUMNS]
        self._columns = [column.index_select(0, self._index) for column in self._whole]
        obs, action, log_prob, params, advantage, target, value = self._columns
        rows, terms = Rows(obs, action, log_prob, params, advantage, target, value, None), passes.terms
        self._gradients = Gradients(theta, passes.actor, passes.critic, terms, rows, 1, numbers)
        self._total = theta.new_zeros(*theta.shape[:-1], self._gradients.width)

    def gradient(self) -> Tensor:
        """The gradient of all parameters, `[P]` or `[agents, P]`."""
        from surefoot.kernels.fused_descent import add_up

        for column, whole in zip(self._columns, self._whole, strict=True):
            torch.index_select(whole, 0, self._index, out=column)
        self._gradients.prepare()
        self._gradients.compute(0)
        add_up(self._gradients, self._total)
        return self._total[..., : self._gradients.parameters].clone()
