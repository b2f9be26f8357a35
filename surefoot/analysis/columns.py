"""The columns of metrics.jsonl that are not instruments, with their meaning. docs/metrics.md shows them."""

from __future__ import annotations

COLUMNS = {
    "step": "environment steps so far, not counting steps that are not transitions",
    "update": "updates so far",
    "episodes": "episodes finished so far",
    "episode_return": "undiscounted return of complete episodes, using the env's own rewards; null if none ended",
    "episode_length": "length of those episodes, in steps",
    "eval_return": "mean greedy return, in rows where an evaluation took place (`--eval-every`)",
    "eval_return_low": "lower end of its 95 % bootstrap interval over episodes",
    "eval_return_high": "upper end of that interval",
    "eval_length": "mean length of those episodes",
    "info/NAME": "a number from the env's `info` at the end of those episodes (`--log-info NAME`)",
    "policy_loss": "policy term of the loss: the negated surrogate",
    "value_loss": "critic's loss, before `value_coef`",
    "entropy": "entropy of the policy's distribution, summed over action dimensions",
    "approx_kl": "E[(r−1) − log r] over all minibatches of the update; includes the noise of `mean_noise`",
    "clip_fraction": "fraction of ratios outside 1±ε, over all minibatches of the update",
    "ratio_error": "max of |r−1| before the first gradient step; anything beyond rounding is a bug (largest since "
    "the last row)",
    "epochs": "passes over the rollout (fewer than `num_epochs` if `stop_kl` ended them early)",
    "learning_rate": "learning rate of the optimizer's first parameter group",
}


def table() -> list[str]:
    """The columns as lines of Markdown, for docs/metrics.md."""
    rows = [f"| `{name}` | {meaning.replace('|', chr(92) + '|')} |" for name, meaning in COLUMNS.items()]
    return ["| name | meaning |", "|---|---|", *rows]
