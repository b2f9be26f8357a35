"""Warnings about problems in training. Each rule is a condition on the metrics and a message with the flag to try.

A condition is checked on every row of metrics and must hold for a stretch of the run. A warning is given once per run.
To add one, write a `Rule` and its line in docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from surefoot.schema import Items, Number, Optional, Record, Row, Shape, Table, Text, Whole

LONG_EPISODE = 10_000  # steps of one env by which an episode should have ended if no limit is known
SOME_STEPS = 2_000  # of one env, before a fraction of a short run says anything about its episodes


@dataclass(frozen=True)
class Facts:
    """What the rules know about a run besides its metrics."""

    env: str
    num_envs: int
    total_steps: int
    time_limit: int | None = None  # longest episode, if the env or the user declares one
    discrete: bool = False  # no part of an action is continuous, so 0 is the lowest entropy
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def num_epochs(self) -> int:
        """Passes over a rollout; 1 if the algorithm has no such setting."""
        found = self.settings.get("num_epochs")
        return found if isinstance(found, int) else 1

    def now(self, *names: str) -> str:
        """The flags among `names` that the algorithm has, with their values: `--learning-rate (now 0.001)`."""
        known = {name: self.settings[name] for name in names if self.settings.get(name) is not None}
        return " or ".join(f"--{name.replace('_', '-')} (now {value})" for name, value in known.items())


@dataclass(frozen=True)
class Moment:
    """A row of metrics with its history."""

    row: Mapping[str, float | None]
    facts: Facts
    quiet: int  # steps since an episode ended
    first_return: float = float("nan")  # in the first row in which episodes ended

    def __getitem__(self, name: str) -> float:
        """A metric; NaN if the row lacks it, which makes every comparison false."""
        found = self.row.get(name)
        return float("nan") if found is None else float(found)

    def has(self, name: str) -> bool:
        return self.row.get(name) is not None


@dataclass(frozen=True)
class Rule:
    """One warning: given when `when` held in `rows` consecutive rows that span this `share` of the run."""

    name: str
    when: Callable[[Moment], bool]
    say: Callable[[Moment], str]
    rows: int = 1
    share: float = 0.0


def _no_end(now: Moment) -> bool:
    each, facts = now.quiet / now.facts.num_envs, now.facts
    if facts.time_limit is not None:
        return each > 2 * facts.time_limit
    return each > LONG_EPISODE or (now.quiet >= 0.2 * facts.total_steps and each > SOME_STEPS)


def _say_no_end(now: Moment) -> str:
    each, limit = now.quiet // now.facts.num_envs, now.facts.time_limit
    what = f"no episode has ended in the last {now.quiet:,} steps, {each:,} of every env"
    if limit is not None:
        return f"{what}, though the env declares at most {limit:,} an episode; check its TimeLimit"
    sure = f" The policy acts almost without chance (entropy {now['entropy']:.3f})." if _certain(now) else ""
    return f"{what}, and without an end there is no return.{sure} Try --max-episode-steps 1000"


def _certain(now: Moment) -> bool:
    return now.facts.discrete and now["entropy"] < 0.05


def _too_large(now: Moment) -> bool:
    return now["kl"] > 1.0 or (now["kl"] > 0.2 and now["clip_fraction"] > 0.6)


def _say_too_large(now: Moment) -> str:
    clipped = f", {now['clip_fraction']:.0%} of the samples clipped" if now.has("clip_fraction") else ""
    gone = f"; the policy has collapsed (entropy {now['entropy']:.3f})" if _certain(now) else ""
    less = now.facts.now("learning_rate", "num_epochs", "max_kl")
    stop = ", or set --stop-kl 0.05" if "stop_kl" in now.facts.settings else ""
    return f"the updates are far too large: KL {now['kl']:.3g} each{clipped}{gone}. Lower {less}{stop}"


def _collapsed(now: Moment) -> bool:
    return _certain(now) and now["kl"] < 0.01 and now["episode_return"] <= now.first_return


def _say_collapsed(now: Moment) -> str:
    more = "; a --entropy-coef above 0 keeps it exploring" if now.facts.settings.get("entropy_coef") == 0.0 else ""
    return (
        f"the policy has stopped exploring (entropy {now['entropy']:.3f}) without having learned: return "
        f"{now['episode_return']:g}, at first {now.first_return:g}. "
        f"Lower {now.facts.now('learning_rate', 'max_kl')}{more}"
    )


def _nothing(now: Moment) -> bool:
    if not now.has("explained_variance"):  # cannot tell this from a policy that has finished learning
        return now["kl"] < 5e-5 and not now["episode_return"] > now.first_return
    return now["kl"] < 5e-5 and abs(now["explained_variance"]) < 0.01


def _say_nothing(now: Moment) -> str:
    critic = f" and explained variance {now['explained_variance']:.2f}" if now.has("explained_variance") else ""
    paid = f", the last episodes returned {now['episode_return']:g}" if now.has("episode_return") else ""
    more = now.facts.now("learning_rate", "max_kl")
    return (
        f"nothing is learned: KL {now['kl']:.1e} each update{critic}{paid}. If all rewards are alike there is nothing "
        f"to learn from (surefoot doctor {now.facts.env} shows them); else raise {more}"
    )


RULES = (
    Rule("no_episode_ends", _no_end, _say_no_end),
    Rule("updates_too_large", _too_large, _say_too_large, rows=3, share=0.02),
    Rule("collapsed", _collapsed, _say_collapsed, rows=5, share=0.05),
    Rule("nothing_learned", _nothing, _say_nothing, rows=10, share=0.1),
    Rule(
        "actions_cut",
        lambda now: now["action_clip_fraction"] > 0.95,
        lambda now: (
            f"{now['action_clip_fraction']:.0%} of the actions lie outside the env's bounds and are cut: "
            "try --action-bounds tanh, or a smaller --log-std-init"
        ),
        rows=10,
        share=0.1,
    ),
    Rule(
        "no_step_accepted",
        lambda now: now["step_fraction"] == 0.0,
        lambda now: f"the line search rejects every step, so the policy stands still: lower {now.facts.now('max_kl')}",
        rows=5,
        share=0.05,
    ),
    Rule(
        "epochs_cut_short",
        lambda now: now["epochs"] <= 1.0 and now.facts.num_epochs >= 3,
        lambda now: (
            f"every update ends after one of {now.facts.num_epochs} epochs, as its KL exceeds stop_kl: "
            f"lower {now.facts.now('learning_rate')}, or raise {now.facts.now('stop_kl')}"
        ),
        rows=10,
        share=0.1,
    ),
)


class Warned(TypedDict):
    name: str
    step: int
    message: str


class AdviceState(TypedDict):
    said: list[Warned]
    held: dict[str, tuple[int, int]]
    last: tuple[int, int]
    ended: int
    first: float | None


class Advice:
    """Checks the rules on each row of a run, and remembers which warnings were given."""

    def __init__(self, facts: Facts, rules: tuple[Rule, ...] = RULES) -> None:
        self.facts, self.rules = facts, rules
        self.said: list[Warned] = []
        self._held: dict[str, tuple[int, int]] = {}  # rule -> (step before the first row in which it held, rows since)
        self._last = (0, 0)  # (step of the last row, episodes then)
        self._ended = 0  # step of the last row in which an episode ended
        self._first: float | None = None  # mean return of the first row with episodes

    def look(self, row: Mapping[str, float | None]) -> list[str]:
        """The new warnings after this row."""
        (before, episodes), self._last = self._last, (int(row["step"] or 0), int(row["episodes"] or 0))
        step = self._last[0]
        if self._last[1] > episodes:
            self._ended = step
        if self._first is None:
            self._first = row.get("episode_return")
        now = Moment(row, self.facts, step - self._ended, float("nan") if self._first is None else self._first)
        return [message for rule in self.rules for message in self._ask(rule, now, before)]

    def _ask(self, rule: Rule, now: Moment, before: int) -> list[str]:
        if not rule.when(now):
            self._held.pop(rule.name, None)
            return []
        first, rows = self._held.get(rule.name, (before, 0))
        self._held[rule.name] = first, rows + 1
        step = self._last[0]
        long_enough = step - first >= rule.share * self.facts.total_steps
        return self.once(rule.name, step, rule.say(now)) if rows + 1 >= rule.rows and long_enough else []

    def once(self, name: str, step: int, message: str) -> list[str]:
        """The message, unless a warning of this name was given before."""
        if any(warning["name"] == name for warning in self.said):
            return []
        self.said.append({"name": name, "step": step, "message": message})
        return [message]

    def state_dict(self) -> AdviceState:
        return {
            "said": [warning.copy() for warning in self.said],
            "held": dict(self._held),
            "last": self._last,
            "ended": self._ended,
            "first": self._first,
        }

    def state_shape(self) -> Shape:
        warning = Record(name=Text(), step=Whole(), message=Text())
        return Record(
            said=Items(warning),
            held=Table(Row(Whole(), Whole())),
            last=Row(Whole(), Whole()),
            ended=Whole(),
            first=Optional(Number()),
        )

    def load_state_dict(self, state: AdviceState) -> None:
        self.said = [warning.copy() for warning in state["said"]]
        self._held = {name: (int(first), int(rows)) for name, (first, rows) in state["held"].items()}
        self._last = (int(state["last"][0]), int(state["last"][1]))
        self._ended = int(state["ended"])
        self._first = None if state["first"] is None else float(state["first"])
