"""The rules of the diagnosis, as data: when a run is ill, what shows it, and what to try. docs/diagnose.md lists them.

They stand in the order of causes: a rule comes before those whose signs its own illness can bring about, so that the
first advice names the cause. A rule is asked of every row of metrics and must hold for a stretch of the run, so that
brief lapses go unmentioned. To add one, write one more `Rule`, its line in docs/diagnose.md and a history in its test.
"""

from __future__ import annotations

from surefoot.analysis.endings import no_end, odd_env, say_no_end
from surefoot.analysis.rule import Moment, Rule

NO_HORIZON = 1e6  # steps that γ looks ahead; beyond that it says nothing about how long an episode should be


def _plunged(now: Moment) -> bool:
    """Entropy fell from over half of its first value to nearly 0 at once. Learning takes longer."""
    entropy = now.memory.series["entropy"].values
    return any(
        after < 0.05 and before > 0.5 * entropy[0] > 0.05 for before, after in zip(entropy, entropy[2:], strict=False)
    )


def _sure_too_soon(now: Moment) -> bool:
    """The policy acts without chance and has not learned to, even if what it does happens to beat random actions."""
    return now.certain and (now["episode_return"] <= now.first_return or now.unimproved or _plunged(now))


def _all_cut(now: Moment) -> bool:
    """A policy may learn that extremes pay. From the start, it is the noise that lies outside the bounds."""
    from_the_start = now.memory.first.get("action_clip_fraction", 0.0) > 0.9
    return now["action_clip_fraction"] > 0.9 and (from_the_start or now.trend != 1)


def _barely_random(now: Moment) -> bool:
    first = [value for name, value in now.memory.first.items() if name.startswith("std/")]
    return bool(first) and max(first) < 0.01 and now.deviation < 0.02


def _constant_input(now: Moment) -> bool:
    """No hidden unit varies, from the first update on: with fresh weights that can only be the observation."""
    return now.memory.first.get("dead_units", 0.0) > 0.95 and now["dead_units"] > 0.95


def _critic_blind(now: Moment) -> bool:
    return now.best_critic < 0.1


def _critic_idle(now: Moment) -> bool:
    """What a random critic says may agree with the returns by chance, so its usual value counts, not its best."""
    if not now["value_loss"] > 0.0:  # all rewards are 0: there is nothing to learn
        return False
    return now.facts["value_coef"] == 0.0 or (now.usual_critic < 0.1 and now.memory.frozen)


def _say_critic(now: Moment) -> str:
    seen = f"explained variance is usually {now.usual_critic:.2f}, and updates do not change it"
    return f"the critic is not learning: {seen}; its loss is {now['value_loss']:.3g}"


def _rewards_large(now: Moment) -> bool:
    return _critic_blind(now) and now["value_loss"] > 1e4


def _dead(now: Moment) -> bool:
    return now["dead_units"] > 0.5


def _revive(now: Moment) -> str:
    lower = now.facts.now("learning_rate") or "--learning-rate"
    activation = now.facts.settings.get("activation", "relu")
    return f"Lower {lower}" if activation == "tanh" else f"Try --activation tanh (now {activation}), or a lower {lower}"


def _much_too_large(now: Moment) -> bool:
    wide = now["kl"] > 0.1 and now["kl_max"] > 20.0
    return now["kl"] > 1.0 or wide or (now["kl"] > 0.2 and now["clip_fraction"] > 0.6)


def _too_large(now: Moment) -> bool:
    """The updates are too large, or an earlier one was and broke the policy. Then the later ones change nothing."""
    broken = _dead(now) or _sure_too_soon(now)
    return _much_too_large(now) or (now.memory.largest_kl > 1.0 and broken)


def _say_too_large(now: Moment) -> str:
    clipped = f", {now['clip_fraction']:.0%} of the samples clipped" if now.has("clip_fraction") else ""
    dead = f"; {now['dead_units']:.0%} of the actor's last hidden units are dead" if _dead(now) else ""
    gone = f"; the policy has collapsed (entropy {now['entropy']:.3f})" if now.certain else dead
    if not _much_too_large(now):
        return f"the updates were far too large: KL {now.memory.largest_kl:.3g} in one of them{gone}"
    return f"the updates are far too large: KL {now['kl']:.3g} each{clipped}{gone}"


def _smaller_steps(now: Moment) -> str:
    stop = ", or set --stop-kl 0.05" if "stop_kl" in now.facts.settings else ""
    return f"Lower {now.facts.now('learning_rate', 'num_epochs', 'max_kl')}{stop}"


def _growing(now: Moment) -> bool:
    usual = now.memory.series["kl"]
    return len(usual.values) >= 10 and now["kl"] > max(0.1, 8.0 * usual.median)


def _short_sighted(now: Moment) -> bool:
    return now.facts.horizon < 6.0 and now["episode_length"] > 10.0 * now.facts.horizon


def _own_limit(now: Moment) -> bool:
    """The user's limit has ended nearly all episodes from the start, long before γ would have stopped looking ahead.
    The policy may learn what pays until then, so the return may have risen at first.
    """
    from_the_start = now.facts["max_episode_steps"] > 0 and now.memory.first.get("time_limit_fraction", 0.0) > 0.8
    return from_the_start and 4.0 * now["episode_length"] < now.facts.horizon < NO_HORIZON


def _cut_short(now: Moment) -> bool:
    """A collapsed policy may run into the env's own limit. The user's limit can be why there was nothing to learn."""
    returns = now.memory.series["episode_return"]
    if not now["time_limit_fraction"] > 0.8:
        return False
    if _own_limit(now):
        return now.unimproved or returns.stalled
    hopeless = now["episode_length"] < now.facts.horizon or max(returns.values, default=0) == min(
        returns.values, default=0
    )
    return now.unimproved and hopeless and not _collapsed(now)


def _say_cut_short(now: Moment) -> str:
    ahead = f", while γ looks {now.facts.horizon:,.0f} steps ahead" if now.facts.horizon < NO_HORIZON else ""
    return (
        f"{now['time_limit_fraction']:.0%} of episodes end at the time limit, after {now['episode_length']:,.0f} steps"
        f"{ahead}; {_say_still(now) if now.unimproved else 'the return has stopped rising'}"
    )


def _collapsed(now: Moment) -> bool:
    sure = now.deviation < 0.01 and now["episode_return"] <= now.first_return
    return now["kl"] < 0.01 and (_sure_too_soon(now) or sure)


def _say_collapsed(now: Moment) -> str:
    chance = f"entropy {now['entropy']:.3f}" if now.certain else f"standard deviation {now.deviation:.2g}"
    return (
        f"the policy has stopped exploring ({chance}) without having learned: return "
        f"{now['episode_return']:g}, at first {now.first_return:g}"
    )


def _keep_exploring(now: Moment) -> str:
    more = "; a --entropy-coef above 0 keeps it exploring" if now.facts.settings.get("entropy_coef") == 0.0 else ""
    return f"Lower {now.facts.now('learning_rate', 'max_kl')}{more}"


def _nothing(now: Moment) -> bool:
    """A policy that has learned enough stands still as well, and its critic may have nothing left to explain."""
    if not now.has("explained_variance"):
        return now["kl"] < 5e-5 and not now["episode_return"] > now.first_return
    return now["kl"] < 5e-5 and abs(now["explained_variance"]) < 0.01 and now.trend != 1


def _say_nothing(now: Moment) -> str:
    critic = f" and explained variance {now['explained_variance']:.2f}" if now.has("explained_variance") else ""
    paid = f", the last episodes returned {now['episode_return']:g}" if now.has("episode_return") else ""
    return f"nothing is learned: KL {now['kl']:.1e} each update{critic}{paid}"


def _say_still(now: Moment) -> str:
    first, last = now.memory.series["episode_return"].ends
    return f"the return is no better than at the start ({first:g} at first, {last:g} now)"


def _moving(now: Moment) -> bool:
    """The policy changes, but the returns are no better. A run that starts from a trained policy may be at its best."""
    return now.unimproved and now.memory.series["kl"].median > 1e-4 and not now.facts.settings.get("init_from")


def _out_of_reach(now: Moment) -> bool:
    """While its loss is this large, a blind critic does not prove that there is nothing to see."""
    return _critic_blind(now) and now["value_loss"] > 100.0 and _moving(now) and not _constant_input(now)


RULES = (
    Rule(
        "no_episode_ends",
        ("step", "episodes"),
        no_end,
        say_no_end,
        lambda now: "Check the env's TimeLimit" if now.facts.time_limit is not None else "Try --max-episode-steps 1000",
    ),
    Rule(
        "stuck_env",
        ("step",),
        lambda now: odd_env(now) is not None,
        lambda now: "env {} of {} {}".format(*odd_env(now) or (0, 0, "stands apart")),
        lambda now: (
            f"Its copy of the env hangs or differs from the others: surefoot doctor {now.facts.env} plays a few "
            "episodes; --max-episode-steps ends those that go nowhere"
        ),
        rows=3,
        share=0.05,
    ),
    Rule(
        "rewards_too_large",
        ("value_loss", "explained_variance"),
        _rewards_large,
        lambda now: (
            f"the rewards are too large for the critic: its loss is {now['value_loss']:.2g} and explained variance has "
            f"not exceeded {max(0.0, now.best_critic):.2f}; returns reach {abs(now['episode_return']):.3g}"
        ),
        lambda now: f"Try --normalize-rewards, or a smaller {now.facts.now('reward_scale') or '--reward-scale'}",
        rows=10,
        share=0.1,
    ),
    Rule(
        "actions_cut",
        ("action_clip_fraction",),
        _all_cut,
        lambda now: f"{now['action_clip_fraction']:.0%} of the actions lie outside the env's bounds and are cut",
        lambda now: "Try --action-bounds tanh, or a smaller --log-std-init",
        rows=10,
        share=0.1,
    ),
    Rule(
        "exploration_too_small",
        ("std/N",),
        _barely_random,
        lambda now: f"the actions hardly vary: their standard deviation is {now.deviation:.2g}, from the start on",
        lambda now: f"Raise {now.facts.now('log_std_init') or '--log-std-init'}",
        rows=5,
        share=0.05,
    ),
    Rule(
        "clip_too_wide",
        ("kl", "clip_fraction"),
        lambda now: now.facts["clip_ratio"] >= 1.0 and now["clip_fraction"] < 0.05 and now["kl"] > 0.05,
        lambda now: (
            f"the clip is too wide to hold the policy back: KL {now['kl']:.2g} each update, "
            f"and {now['clip_fraction']:.1%} of the samples clipped"
        ),
        lambda now: f"Lower {now.facts.now('clip_ratio')}; 0.1 to 0.3 is usual",
        rows=2,
        share=0.02,
    ),
    Rule(
        "updates_too_large",
        ("kl", "kl_max", "clip_fraction", "entropy"),
        _too_large,
        _say_too_large,
        _smaller_steps,
        rows=3,
        share=0.02,
    ),
    Rule(
        "updates_growing",
        ("kl",),
        _growing,
        lambda now: (
            f"KL is {now['kl'] / now.memory.series['kl'].median:.0f} times its usual size "
            f"since update {now.memory.since.get('updates_growing', 0):,} ({now['kl']:.2g} each)"
        ),
        _smaller_steps,
        rows=5,
        share=0.03,
    ),
    Rule(
        "dead_units",
        ("dead_units",),
        lambda now: _dead(now) and not _constant_input(now),
        lambda now: f"{now['dead_units']:.0%} of the actor's last hidden units are dead: their output hardly varies",
        _revive,
        rows=5,
        share=0.1,
    ),
    Rule(
        "gamma_too_small",
        ("episode_length",),
        _short_sighted,
        lambda now: (
            f"γ looks {now.facts.horizon:.1f} steps ahead, but episodes last {now['episode_length']:,.0f}: "
            "the policy hardly learns what an action leads to"
        ),
        lambda now: f"Raise {now.facts.now('gamma')}; 0.9 to 0.999 is usual",
        rows=5,
        share=0.1,
    ),
    Rule(
        "time_limit_dominates",
        ("time_limit_fraction", "episode_length", "episode_return"),
        _cut_short,
        _say_cut_short,
        lambda now: f"Raise {now.facts.now('max_episode_steps') or '--max-episode-steps'}",
        rows=10,
        share=0.5,
    ),
    Rule(
        "collapsed",
        ("entropy", "std/N", "kl", "episode_return"),
        _collapsed,
        _say_collapsed,
        _keep_exploring,
        rows=5,
        share=0.05,
    ),
    Rule(
        "critic_not_learning",
        ("explained_variance", "explained_variance_after", "value_loss"),
        _critic_idle,
        _say_critic,
        lambda now: f"Raise {now.facts.now('critic_learning_rate', 'value_coef', 'learning_rate')}",
        rows=20,
        share=0.3,
    ),
    Rule(
        "values_too_large",
        ("explained_variance", "value_loss", "episode_return", "kl"),
        _out_of_reach,
        lambda now: (
            f"{_say_still(now)}, and the critic explains nothing (explained variance at most {now.best_critic:.2f}): "
            f"its loss of {now['value_loss']:.2g} suggests values that it has not reached"
        ),
        lambda now: f"Try --normalize-rewards, or a smaller {now.facts.now('reward_scale') or '--reward-scale'}",
        rows=20,
        share=0.4,
        alone=True,
    ),
    Rule(
        "observation_says_nothing",
        ("explained_variance", "episode_return", "dead_units"),
        lambda now: _constant_input(now) or (_critic_blind(now) and _moving(now)),
        lambda now: (
            ("the policy gives the same answer to every observation" if _constant_input(now) else _say_still(now))
            + f", and the critic predicts nothing from what it sees (explained variance at most {now.best_critic:.2f})"
        ),
        lambda now: (
            f"Check that the observation holds what the reward depends on: surefoot doctor {now.facts.env} shows it; "
            "try --normalize-observations, or --frame-stack or --memory if it lies in the past"
        ),
        rows=20,
        share=0.4,
        alone=True,
    ),
    Rule(
        "action_changes_nothing",
        ("episode_return", "kl", "explained_variance"),
        lambda now: now.best_critic > 0.2 and now.trend == 0 and _moving(now),
        lambda now: (
            f"{_say_still(now)}, though the policy changes and the critic explains up to {now.best_critic:.0%} of it"
        ),
        lambda now: (
            f"Check that actions reach the env and change something: surefoot doctor {now.facts.env}; "
            "if they do, explore more: --entropy-coef 0.01"
        ),
        rows=20,
        share=0.5,
        alone=True,
    ),
    Rule(
        "nothing_learned",
        ("kl", "explained_variance", "episode_return"),
        _nothing,
        _say_nothing,
        lambda now: (
            f"If all rewards are alike there is nothing to learn from (surefoot doctor {now.facts.env} shows them); "
            f"else raise {now.facts.now('learning_rate', 'max_kl')}"
        ),
        rows=10,
        share=0.1,
    ),
    Rule(
        "no_step_accepted",
        ("step_fraction",),
        lambda now: now["step_fraction"] == 0.0,
        lambda now: "the line search rejects every step, so the policy stands still",
        lambda now: f"Lower {now.facts.now('max_kl')}",
        rows=5,
        share=0.05,
    ),
    Rule(
        "epochs_cut_short",
        ("epochs",),
        lambda now: now["epochs"] <= 1.0 and now.facts["num_epochs"] >= 3,
        lambda now: f"every update ends after one of {now.facts['num_epochs']:g} epochs, as its KL exceeds stop_kl",
        lambda now: f"Lower {now.facts.now('learning_rate')}, or raise {now.facts.now('stop_kl')}",
        rows=10,
        share=0.1,
    ),
)
