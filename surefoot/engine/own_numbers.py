"""Settings that agents who are trained at once may have of their own. Imports no torch: the command line checks them.

They are numbers in a kernel's table or on the host. The other settings are the same for all, because they change the
shape of a tensor or what a kernel does.
"""

from __future__ import annotations

OF_ALGORITHM = (
    "learning_rate",
    "learning_rate_schedule",
    "critic_learning_rate",
    "max_grad_norm",
    "adaptive_kl",
    "clip_ratio",
    "clip_ratio_schedule",
    "entropy_coef",
    "value_coef",
    "value_clip",
    "gamma",
    "gae_lambda",
    "value_lambda",
)
OWN_NUMBERS = (*OF_ALGORITHM, "reward_scale", "log_std_init", "total_steps")
