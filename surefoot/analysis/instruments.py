"""The instruments of a run as data: what each metric means, its unit, and the range in which a run is healthy.

docs/metrics.md shows this table, and a test compares the two. `low` and `high` are None where a side has no limit. A
range says where healthy runs usually are. A number outside it is worth a look; it does not prove a fault.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric of an update."""

    name: str  # its column; ends in `/N` where there is one for each dimension of the action
    meaning: str
    unit: str
    low: float | None = None
    high: float | None = None
    formula: str = ""
    of: str = ""  # the algorithms that have it; empty: all
    always: bool = False  # in every update; else in those that are measured in full

    @property
    def healthy(self) -> str:
        """The range in words."""
        if self.low is None and self.high is None:
            return "–"
        if self.low is None:
            return f"at most {self.high:g}"
        if self.high is None:
            return f"at least {self.low:g}"
        return f"{self.low:g} to {self.high:g}"


INSTRUMENTS = (
    Instrument(
        "kl",
        "exact mean KL(old‖new) over the rollout, after the update",
        "nats",
        1e-5,
        0.1,
        "E[KL(π_old(·|s) ‖ π_new(·|s))]",
        always=True,
    ),
    Instrument(
        "kl_p95", "its 95th percentile over states (on a GPU, of some 30,000 of them)", "nats", None, 0.5, always=True
    ),
    Instrument("kl_max", "its maximum over states (largest since the last row)", "nats", None, 2.0, always=True),
    Instrument(
        "ratio_p5", "5th percentile of the ratios after the update", "ratio", 0.5, None, "r = π_new(a|s) / π_old(a|s)"
    ),
    Instrument("ratio_p50", "median of the ratios after the update", "ratio", 0.8, 1.2),
    Instrument("ratio_p95", "95th percentile of the ratios after the update", "ratio", None, 2.0),
    Instrument("ratio_max", "largest ratio after the update (largest since the last row)", "ratio", None, 10.0),
    Instrument(
        "effective_sample_size",
        "effective sample size of the ratios as importance weights, as a share of the batch",
        "share",
        0.7,
        1.0,
        "(Σr)² / (n·Σr²)",
    ),
    Instrument(
        "clip_fraction_positive",
        "share of the samples with a positive advantage whose ratio is clipped on the side that pays (r > 1)",
        "share",
        None,
        0.5,
        of="PPO",
    ),
    Instrument(
        "clip_fraction_negative",
        "share of the samples with a negative advantage whose ratio is clipped on the side that pays (r < 1)",
        "share",
        None,
        0.5,
        of="PPO",
    ),
    Instrument(
        "predicted_gain",
        "gain in the surrogate that the gradient at the start predicts for the step that the actor took",
        "advantage",
        0.0,
        None,
        "∇L·(θ_new − θ_old)",
    ),
    Instrument(
        "surrogate_gain",
        "realised gain: the surrogate over the whole batch after the update, minus before it",
        "advantage",
        0.0,
        None,
        "L(θ_new) − L(θ_old)",
    ),
    Instrument(
        "entropy/N", "entropy of dimension N of the action, where there are several", "nats", None, None, "H(π(a_N|s))"
    ),
    Instrument("std/N", "standard deviation of continuous dimension N", "as stored", 0.01, 5.0),
    Instrument(
        "explained_variance",
        "1 − Var(target − V)/Var(target), for the critic that collected the rollout",
        "share",
        0.0,
        1.0,
        always=True,
    ),
    Instrument(
        "explained_variance_after", "the same for the critic after the update, on the same targets", "share", 0.0, 1.0
    ),
    Instrument("grad_norm", "gradient norm before clipping", "norm", always=True),
    Instrument(
        "gradient_noise_scale",
        "batch size at which the noise of the actor's gradient is as large as the gradient; null if noise drowns it",
        "samples",
        None,
        1e5,
        "tr Σ / ‖G‖²",
    ),
    Instrument(
        "dead_units",
        "share of the actor's last hidden units whose output hardly varies",
        "share",
        None,
        0.2,
        "std < 1e-3",
    ),
    Instrument(
        "effective_rank",
        "effective number of directions that the actor's last hidden layer uses",
        "directions",
        1.0,
        None,
        "(Σλ)² / Σλ², λ of the covariance",
    ),
    Instrument(
        "time_limit_fraction",
        "share of the episodes that the time limit (or the end of the rollout) ended; null if none ended",
        "share",
        always=True,
    ),
    Instrument(
        "action_clip_fraction",
        "Box actions: fraction of components clipped to the env's bounds",
        "share",
        None,
        0.4,
        always=True,
    ),
    Instrument("kl_coef", "β used in this update", "coefficient", 1e-3, 1e3, of="PPO-penalty", always=True),
    Instrument(
        "step_fraction",
        "fraction of the natural step that was accepted; 0 means none was, and the weights were restored",
        "share",
        0.1,
        1.0,
        of="TRPO",
        always=True,
    ),
    Instrument("line_search_tries", "step lengths that were tried", "count", 1.0, 8.0, of="TRPO", always=True),
    Instrument("tries_over_max_kl", "tries whose KL exceeded `max_kl`", "count", 0.0, 8.0, of="TRPO", always=True),
    Instrument("full_step_kl", "KL of the full natural step", "nats", None, 0.1, of="TRPO", always=True),
    Instrument(
        "full_step_gain",
        "gain in the surrogate from the full natural step; `predicted_gain` is its prediction",
        "advantage",
        0.0,
        None,
        of="TRPO",
        always=True,
    ),
)
BY_NAME = {instrument.name: instrument for instrument in INSTRUMENTS}


def instrument_of(column: str) -> Instrument | None:
    """The instrument that a column of metrics.jsonl belongs to: `std/3` to `std/N`."""
    name, slash, _ = column.partition("/")
    return BY_NAME.get(f"{name}/N" if slash else name)


def table() -> list[str]:
    """The instruments as lines of Markdown, for docs/metrics.md."""
    lines = ["| name | meaning | unit | healthy |", "|---|---|---|---|"]
    for one in INSTRUMENTS:
        meaning = f"{one.of}: {one.meaning}" if one.of else one.meaning
        formula = f": {one.formula}".replace("|", r"\|") if one.formula else ""
        star = "" if one.always else " ·"
        lines.append(f"| `{one.name}`{star} | {meaning}{formula} | {one.unit} | {one.healthy} |")
    return lines
