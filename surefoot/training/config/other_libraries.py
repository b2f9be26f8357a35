"""What other libraries call our settings, and how their values carry over. Imports no torch.

Checked against Stable-Baselines3 with sb3-contrib and the RL Zoo, CleanRL, rsl_rl, Tianshou (1 and 2) and RLlib.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from math import isqrt
from typing import NamedTuple

from surefoot.errors import UsageError
from surefoot.settings import coerce

Settings = Mapping[str, object]


class Here(NamedTuple):
    """Our setting, the value that corresponds to the other library's switch, and any difference."""

    setting: str
    value: str | int | None = None
    note: str = ""


OFF = ("no", "off", "false", "0")
ALL_ENVS = "there it counts the steps of all envs together, here those of each"
UPDATES = "in env steps, not in updates"
SWITCH = "a switch there; here a distance, usually that of clip_ratio"
ELSEWHERE: dict[str, Here] = {
    # the environment and the rollout
    "n_envs": Here("num_envs"),
    "training_num": Here("num_envs"),
    "num_training_envs": Here("num_envs"),
    "num_envs_per_env_runner": Here("num_envs", note="of all processes together"),
    "n_steps": Here("rollout_length"),
    "num_steps": Here("rollout_length"),
    "num_steps_per_env": Here("rollout_length"),
    "rollout_fragment_length": Here("rollout_length"),
    "num_env_runners": Here("workers"),
    "vec_env": Here("workers", note="processes that step the envs; 0 steps them in this one"),
    "env_wrapper": Here("wrappers"),
    "rew_norm": Here("normalize_rewards"),
    "return_scaling": Here("normalize_rewards"),
    "empirical_normalization": Here("normalize_observations"),
    "actor_obs_normalization": Here("normalize_observations"),
    # the length of a run, and what happens during it
    "total_timesteps": Here("total_steps"),
    "n_timesteps": Here("total_steps"),
    "timesteps": Here("total_steps"),
    "eval_freq": Here("eval_every", note="counted in steps of all envs together"),
    "n_eval_episodes": Here("selection_episodes", note="those of the final evaluation are eval_episodes"),
    "test_num": Here("selection_episodes", note="those of the final evaluation are eval_episodes"),
    "save_freq": Here("checkpoint_every", note="counted in steps of all envs together"),
    "save_interval": Here("checkpoint_every", note=UPDATES),
    "log_interval": Here("log_every", note=UPDATES),
    "num_threads": Here("threads"),
    "cuda": Here("device", "cuda"),
    "track": Here("trackers", "wandb"),
    "capture_video": Here("video_every", note="steps between videos; `surefoot video latest` films a finished run"),
    # networks and distributions
    "net_arch": Here("hidden_sizes"),
    "actor_hidden_dims": Here("hidden_sizes"),
    "critic_hidden_dims": Here("critic_hidden_sizes"),
    "activation_fn": Here("activation"),
    "rnn_type": Here("memory"),
    "rnn_hidden_dim": Here("memory_size"),
    "init_noise_std": Here("log_std_init", note="the logarithm of it"),
    "bound_action_method": Here("action_bounds"),
    "action_bound_method": Here("action_bounds"),
    "use_sde": Here("std", "gsde"),
    "sde_sample_freq": Here("sde_resample"),
    # gradient steps
    "lr": Here("learning_rate"),
    "anneal_lr": Here("learning_rate_schedule", "linear"),
    "lr_decay": Here("learning_rate_schedule", "linear"),
    "desired_kl": Here("adaptive_kl", note="it turns the adaptive learning rate on"),
    "grad_clip": Here("max_grad_norm"),
    "use_rms_prop": Here("optimizer", "rmsprop"),
    "n_epochs": Here("num_epochs"),
    "update_epochs": Here("num_epochs"),
    "num_learning_epochs": Here("num_epochs"),
    "num_sgd_iter": Here("num_epochs"),
    "repeat_per_collect": Here("num_epochs"),
    "update_step_num_repetitions": Here("num_epochs"),
    "num_mini_batches": Here("num_minibatches"),
    "recompute_adv": Here("recompute_advantage"),
    "rpo_alpha": Here("mean_noise"),
    # advantages and losses
    "discount": Here("gamma"),
    "discount_factor": Here("gamma"),
    "lam": Here("gae_lambda"),
    "lambda": Here("gae_lambda"),
    "lambda_": Here("gae_lambda"),
    "norm_adv": Here("normalize_advantage", "minibatch"),
    "advantage_normalization": Here("normalize_advantage", "minibatch"),
    "normalize_advantage_per_mini_batch": Here("normalize_advantage", "minibatch"),
    "ent_coef": Here("entropy_coef"),
    "entropy_coeff": Here("entropy_coef"),
    "vf_coef": Here("value_coef", note="CleanRL halves the critic's loss before: take half of its value"),
    "vf_loss_coeff": Here("value_coef"),
    "value_loss_coef": Here("value_coef"),
    "clip_range": Here("clip_ratio"),
    "clip_coef": Here("clip_ratio"),
    "clip_param": Here("clip_ratio"),
    "eps_clip": Here("clip_ratio"),
    "clip_range_vf": Here("value_clip"),
    "clip_vloss": Here("value_clip", note=SWITCH),
    "use_clipped_value_loss": Here("value_clip", note=SWITCH),
    "kl_target": Here("target_kl"),
    "kl_coeff": Here("kl_coef"),
    # trust regions
    "cg_max_steps": Here("cg_iterations"),
    "line_search_shrinking_factor": Here("backtrack_factor"),
    "line_search_max_iter": Here("backtrack_tries"),
    "n_critic_updates": Here("value_epochs"),
    "sub_sampling_factor": Here("fisher_fraction", note="a share: 1 divided by it"),
}


def explain(
    name: str,
    algo: str,
    own: Container[str],
    owners: Callable[[str], Sequence[str]],
    value: object = None,
    settings: Settings | None = None,
    *,
    as_flag: bool,
) -> str | None:
    """Explains another library's setting in our terms; None if we do not know it.

    `own`: the names of the algorithm's settings; `owners` finds the algorithms that have one. `settings`: those of the
    run, as far as known; with them and a number in `value`, the number to use here is computed.
    """
    compute = COMPUTED.get(name)
    here = compute(algo, own, _number(name, value), settings) if compute else ELSEWHERE.get(name)
    if here is None:
        return None
    shown = f"--{here.setting.replace('_', '-')}" if as_flag else here.setting
    if here.setting not in own:
        return f"here it is {shown}, which is not a setting of {algo}; it belongs to {', '.join(owners(here.setting))}"
    if here.value is not None and str(value).lower() not in OFF:
        shown += f" {here.value}" if as_flag else f"={here.value!r}"
    return f"here it is {shown}" + (f" ({here.note})" if here.note else "")


def _number(name: str, value: object) -> int | None:
    try:
        number = None if value is None else int(coerce(name, value, int))
    except UsageError:
        return None
    return number if number is None or number > 0 else None


def _count(settings: Settings, name: str) -> int:
    return coerce(name, settings[name], int)


def _samples(settings: Settings) -> tuple[int, str]:
    envs, steps = _count(settings, "num_envs"), _count(settings, "rollout_length")
    return envs * steps, f"{envs} envs × {steps} steps = {envs * steps:,} samples"


def _minibatch(algo: str, own: Container[str], size: int | None, settings: Settings | None) -> Here:
    """The size of a minibatch there; the number of minibatches here."""
    setting = next((name for name in ("num_minibatches", "value_minibatches") if name in own), None)
    if setting is None:
        whole, size_of = ("episodes", "episodes_per_env") if "episodes_per_env" in own else ("steps", "rollout_length")
        return Here(size_of, note=f"{algo} takes one gradient step per update, on all {whole} of num_envs envs")
    whose = " of the critic; the policy's step uses the whole rollout" if setting == "value_minibatches" else ""
    if settings is None or size is None:
        return Here(setting, note=f"rollout_length × num_envs / batch size{whose}")
    samples, product = _samples(settings)
    shared = samples if settings["memory"] == "none" else _count(settings, "num_envs")  # a memory needs whole envs
    divisors = [m for d in range(1, isqrt(shared) + 1) if shared % d == 0 for m in (d, shared // d)]
    number = min(divisors, key=lambda m: abs(samples / m - size))
    each = samples // number
    nearest = "" if each == size else f", the nearest to {size} that divides"
    return Here(setting, number, f"{product}, {each} in each minibatch{nearest}{whose}")


def _rollout(algo: str, own: Container[str], samples: int | None, settings: Settings | None) -> Here:
    """The samples of a whole rollout there; the steps of each env here."""
    if samples is None or settings is None:
        return Here("rollout_length", note=ALL_ENVS)
    envs = _count(settings, "num_envs")
    steps = max(1, round(samples / envs))
    return Here("rollout_length", steps, f"{envs} envs × {steps} steps = {envs * steps:,} samples")


def _iterations(algo: str, own: Container[str], updates: int | None, settings: Settings | None) -> Here:
    """Updates there; env steps here."""
    if updates is None or settings is None:
        return Here("total_steps", note=UPDATES)
    samples, product = _samples(settings)
    return Here("total_steps", updates * samples, f"{updates:,} updates of {product}")


def _target_kl(algo: str, own: Container[str], value: int | None, settings: Settings | None) -> Here:
    """An early stop of the epochs, or the trust region of TRPO. (PPO-penalty has a setting of this name.)"""
    if "max_kl" in own:
        return Here("max_kl")
    if "stop_kl" in own:
        note = "which ends an update early; Stable-Baselines3 does so at 1.5 times its target_kl, CleanRL at target_kl"
        return Here("stop_kl", note=note)
    return Here("target_kl")


Computed = Callable[[str, Container[str], int | None, Settings | None], Here]
COMPUTED: dict[str, Computed] = {
    "batch_size": _minibatch,
    "minibatch_size": _minibatch,
    "sgd_minibatch_size": _minibatch,
    "train_batch_size": _rollout,
    "train_batch_size_per_learner": _rollout,
    "step_per_collect": _rollout,
    "collection_step_num_env_steps": _rollout,
    "max_iterations": _iterations,
    "target_kl": _target_kl,
}
