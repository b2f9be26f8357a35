"""The settings of a run that belong neither to its env nor to its policy or algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from surefoot.algorithms import ALGORITHMS
from surefoot.engine.names import AUTO, BUILT_IN, Precision, check_name
from surefoot.errors import UsageError
from surefoot.settings import Seconds, Settings, setting

DEFAULT_ALGO = "ppo"


@dataclass(frozen=True, kw_only=True)
class RunConfig(Settings):
    """The run."""

    algo: str = setting(
        DEFAULT_ALGO, f"One of {', '.join(ALGORITHMS)}; or your own: file.py:Class or module:Class.", flag=False
    )
    total_steps: int = setting(1_000_000, "Environment steps to train for; never exceeded.", low=1)
    seed: int | None = setting(None, "Random seed; drawn and printed if not given.", low=0, high=2**31 - 1)
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", "Device to train on; auto: a GPU only if the networks are large enough to benefit."
    )
    engine: str = setting(
        AUTO,
        "What acts and learns: native (compiled kernels), hybrid (PyTorch with its MLPs and memory compiled), cuda (a "
        "GPU, with CUDA graphs) or torch; auto: the first of them that supports the policy. Or your own: file.py:Class "
        "or module:Class.",
        metavar="{" + ",".join((AUTO, *BUILT_IN)) + "}|FILE.py:CLASS",
    )
    precision: Precision = setting(
        "float32",
        "Products of matrices on a GPU: float32, or faster with fewer digits: tf32 (at least three) or bf16 (two).",
    )
    threads: int | Literal["auto"] = setting(
        "auto",
        "Threads of the learner and of MuJoCo's envs; auto: measure and use the fastest number. PyTorch's rounding "
        "depends on the learner's, so its runs record it in config.toml.",
        low=1,
        high=1024,
    )
    log_every: int | None = setting(None, "Steps between rows of metrics; none: 200 rows per run.", low=1)
    name: str | None = setting(
        None, "What to call the run: in its directory's name, in `list runs` and in trackers.", metavar="NAME"
    )
    tags: tuple[str, ...] = setting((), "Tags for `list runs --tag`, such as baseline,paper.", metavar="TAG")
    checkpoint_every: int | None = setting(
        None, "Steps between checkpoints, in addition to the final one; none: one per minute.", low=1
    )
    keep_checkpoints: int | Literal["all"] = setting(
        3, "How many of the newest checkpoints to keep, besides the best.", low=1
    )
    max_time: Seconds | None = setting(
        None, "Save and stop within this wall time (2h, 90m, 45s); `surefoot resume` continues.", above=0
    )
    init_from: str | None = setting(
        None, "Start from the policy (and normaliser) of this run or checkpoint.", metavar="RUN"
    )
    log_info: tuple[str, ...] = setting(
        (), "Numbers to log from the env's info at the end of episodes, by name (is_success).", metavar="NAME"
    )
    callbacks: tuple[str, ...] = setting(
        (), "Your own callbacks: file.py:Class or module:Class.", metavar="FILE.py:CLASS"
    )
    trackers: tuple[str, ...] = setting(
        (), "Also send metrics to these services; their failures do not affect the run.", metavar="{wandb,mlflow}"
    )
    eval_every: int | None = setting(
        None, "Steps between evaluations during training, which choose the best checkpoint; none: disabled.", low=1
    )
    patience: int | None = setting(
        None, "Stop after this many evaluations in a row without a better one than before; none: disabled.", low=1
    )
    selection_episodes: int = setting(
        20, "Episodes per evaluation during training, with other seeds than the final one.", low=1
    )
    eval_episodes: int = setting(100, "Episodes of the final greedy evaluation; 0: disabled.", low=0)
    target_return: float | None = setting(
        None, "Stop when a greedy evaluation over eval_episodes reaches this mean return; none: disabled."
    )
    eval_max_steps: int | None = setting(
        None, "Longest evaluation episode, in steps; none: the env's own limit, else 10_000.", low=1
    )
    eval_env: str | None = setting(None, "Evaluate in this env instead of the training one.", metavar="ENV")
    eval_env_kwargs: dict[str, object] = setting({}, "Keyword arguments of eval_env, as JSON.")
    video_every: int | None = setting(None, "Steps between videos of one greedy episode; none: disabled.", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name(self.engine)
        tags = dict.fromkeys(tag.strip() for text in self.tags for tag in text.split(","))
        object.__setattr__(self, "tags", tuple(tag for tag in tags if tag))
        if self.name is not None and not self.name.strip():
            raise UsageError("name is empty; give the run a name, or drop it")
        if self.eval_env_kwargs and self.eval_env is None:
            raise UsageError("eval_env_kwargs has no effect without eval_env; set the env to evaluate in")
        if self.target_return is not None and not self.eval_episodes:
            raise UsageError("target_return is tested in an evaluation, but eval_episodes=0; set eval_episodes (100)")

    @property
    def log_interval(self) -> int:
        return self.log_every or max(1, self.total_steps // 200)
