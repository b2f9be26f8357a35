"""Signs of the diagnosis in how episodes end: none does, or those of one env stand apart."""

from __future__ import annotations

import math

from surefoot.analysis.memory import MOST_ENVS, EnvTally
from surefoot.analysis.rule import Moment

LONG_EPISODE = 10_000  # steps of one env; where nothing is known of its episodes, they should have ended by then
SOME_STEPS = 2_000  # that one env must have taken before a share of a short run says anything about its episodes


def no_end(now: Moment) -> bool:
    each, facts = now.quiet / now.facts.num_envs, now.facts
    if facts.time_limit is not None:
        return each > 2 * facts.time_limit
    return each > LONG_EPISODE or (now.quiet >= 0.2 * facts.total_steps and each > SOME_STEPS)


def say_no_end(now: Moment) -> str:
    each, limit = now.quiet // now.facts.num_envs, now.facts.time_limit
    what = f"no episode has ended in the last {now.quiet:,} steps, {each:,} of every env"
    if limit is not None:
        return f"{what}, though the env declares at most {limit:,} an episode"
    sure = f"; the policy acts almost without chance (entropy {now['entropy']:.3f})" if now.certain else ""
    return f"{what}, and without an end there is no return{sure}"


def odd_env(now: Moment) -> tuple[int, int, str] | None:
    """The env that stands apart from the others, how many there are, and how it shows."""
    envs, each = now.memory.envs, now.step / now.facts.num_envs
    if now.facts.num_envs < 2 or now.memory.all_envs.count < 10 * now.facts.num_envs:
        return None
    for env in range(min(now.facts.num_envs, MOST_ENVS)):
        own = envs.get(env, EnvTally())
        silent = (now.step - own.step) / now.facts.num_envs
        long = silent > max(5 * now.memory.longest, 0.2 * each)
        alike = own.count >= 10 and own.spread <= 1e-9 * abs(own.mean)
        if not (long or alike):  # nearly always
            continue
        others = now.memory.all_envs.without(own)
        if long and now.step - others.step < 0.1 * (now.step - own.step):
            most = f"the longest took {now.memory.longest:,}"
            return env, now.facts.num_envs, f"has not ended an episode for {silent:,.0f} of its steps; {most}"
        apart = abs(own.mean - others.mean) > 6.0 * others.spread / math.sqrt(max(1, own.count))
        if alike and apart:
            usual = f"the others {others.mean:g} on average"
            return env, now.facts.num_envs, f"returns {own.mean:g} in each of its {own.count:,} episodes, {usual}"
    return None
