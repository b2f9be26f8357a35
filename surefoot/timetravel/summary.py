"""A replayed update in words and numbers, for a terminal and for `--json`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.timetravel.replay import Replay

QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
MOST_TENSORS, MOST_COLUMNS = 6, 6


def describe(found: Replay) -> str:
    """A table: shapes, norms, quantiles, the largest gradients, and whether the row is as logged."""
    rows = {
        "update": f"{found.update:,}, steps {found.step - found.rollout.num_steps + 1:,} to {found.step:,}",
        "from": found.start,
        "rollout": ", ".join(f"{name} {list(shape)}" for name, shape in _shapes(found).items()),
    }
    rows |= {name: _quantile_line(values) for name, values in quantiles(found).items()}
    rows["weights"] = ", ".join(f"{name} {value:.4g}" for name, value in weight_norms(found).items())
    rows |= _gradient_rows(found)
    if found.error is not None:
        rows["rejected"] = found.error
    rows["row"] = _row_line(found)
    width = max(map(len, rows))
    lines = [f"{name:<{width}}  {text}" for name, text in rows.items()]
    if found.exact is False:
        lines += ["It may differ because of:", *(f"  {reason.removeprefix('note: ')}" for reason in found.reasons)]
    return "\n".join(lines)


def as_dict(found: Replay) -> dict[str, object]:
    """For `--json`."""
    gradients = found.gradients
    return {
        "run_dir": str(found.run.path),
        "update": found.update,
        "step": found.step,
        "start": found.start,
        "exact": found.exact,
        "differences": {name: list(pair) for name, pair in found.differences.items()},
        "first_difference": found.parted,
        "reasons": list(found.reasons),
        "rejected": found.error,
        "metrics": found.metrics,
        "row": found.row,
        "logged": found.logged,
        "shapes": {name: list(array.shape) for name, array in found.arrays().items()},
        "quantiles": {name: dict(zip(map(str, QUANTILES), x, strict=True)) for name, x in quantiles(found).items()},
        "weights": weight_norms(found),
        "gradient_norms": gradients.norms.tolist(),
        "gradients_by_tensor": gradients.tensor_norms,
    }


def quantiles(found: Replay) -> dict[str, list[float]]:
    """Quantiles of a quantity that every valid sample has."""
    batch = found.batch
    valid = found.rollout.valid.flatten()
    columns = {"reward": found.rollout.reward.flatten()}
    if batch is not None:
        columns |= {"advantage": batch.advantage, "value target": batch.value_target}
    if found.samples is not None:
        columns |= {"ratio": found.samples.ratio, "kl": found.samples.kl}
    return {name: _quantiles(column[valid]) for name, column in columns.items() if bool(valid.any())}


def _quantiles(values: Tensor) -> list[float]:
    """By sorting: `torch.quantile` takes no more than 16 million values."""
    ordered = values.double().sort().values
    return [float(ordered[round(q * (len(ordered) - 1))]) for q in QUANTILES]


def _quantile_line(values: list[float]) -> str:
    names = ("min", "5 %", "median", "95 %", "max")
    return ", ".join(f"{name} {value:.4g}" for name, value in zip(names, values, strict=True))


def weight_norms(found: Replay) -> dict[str, float]:
    """The norm of all trained weights, before and after, and of the step between them."""
    names = [slot.name for slot in found.gradients.slots]
    before, after = (
        torch.cat([weights[name].double().flatten() for name in names])
        for weights in (found.weights_before, found.weights_after)
    )
    return {"before": float(before.norm()), "after": float(after.norm()), "step": float((after - before).norm())}


def _shapes(found: Replay) -> dict[str, tuple[int, ...]]:
    rollout = found.rollout
    return {name: tuple(x.shape) for name, x in (("obs", rollout.obs), ("action", rollout.action))}


def _gradient_rows(found: Replay) -> dict[str, str]:
    gradients, rows = found.gradients, {}
    if len(gradients.norms):
        norms = gradients.norms
        rows["gradients"] = (
            f"{len(norms)} minibatches, norm {float(norms[0]):.4g} first, {float(norms[-1]):.4g} last, "
            f"{float(norms.max()):.4g} largest"
        )
    if gradients.policy is not None and gradients.natural_step is not None:
        policy, step = float(gradients.policy.norm()), float(gradients.natural_step.norm())
        rows["natural step"] = f"norm {step:.4g}, of the policy gradient {policy:.4g}"
    for name, norm in list(gradients.tensor_norms.items())[:MOST_TENSORS]:
        rows[f"  {name}"] = f"norm {norm:.4g}"
    return rows


def _row_line(found: Replay) -> str:
    if found.logged is None:
        return "the run logged none for this update, so there is nothing to compare with"
    upto = f"{found.logged['update']:,}"
    if found.exact:
        return f"as logged, exactly (the row of update {upto})"
    if found.row is None:
        return f"the run logged one at update {upto}; the replay did not get that far"
    listed = [f"{name} {now} instead of {then}" for name, (then, now) in found.differences.items()]
    more = f" and {len(listed) - MOST_COLUMNS} more" if len(listed) > MOST_COLUMNS else ""
    first = "" if found.parted in (None, found.logged["update"]) else f"; rows differ from update {found.parted:,} on"
    return f"NOT as logged (the row of update {upto}): {', '.join(listed[:MOST_COLUMNS])}{more}{first}"
