"""An environment examined before it is trained on: what is wrong, what it is like, and which flags suit it.

Each check stands alone: one that raises becomes a finding, and the others go on. Everything is seeded.
"""

from __future__ import annotations

import json
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shlex import quote
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from surefoot.envs.checks import as_number, check_action_space
from surefoot.envs.gym_envs import GymEnvs, read_mask, time_limit
from surefoot.envs.make import make_env
from surefoot.envs.seeds import episode_seed
from surefoot.errors import EnvError, SurefootError, UsageError
from surefoot.spaces.layout import MASK, Layout
from surefoot.spaces.masks import ActionMasks

if TYPE_CHECKING:
    from surefoot.envs.config import EnvConfig
    from surefoot.envs.make import Factory
    from surefoot.types import Array

    Env = gym.Env[Any, Any]
    Space = spaces.Space[Any]

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")

SEED = 0
MAKING = "making the env"
PLAY_SECONDS = 10.0  # of random play in all
ENDLESS = 10_000  # steps after which an episode without a limit is taken to have no end
REPLAY_STEPS, REPLAY_SECONDS = 200, 1.0  # of one episode that is played again
SPEED_SECONDS, START_SECONDS = 0.3, 2.0  # of one measurement; the longest that making its envs may take
COUNTS = (1, 4, 8, 16)
POLICY_SECONDS = 2e-4  # one call of a small policy: what more envs per call share among them
LARGE_REWARD, LARGE_INPUT, SMALL_STD, SPARSE = 10.0, 10.0, 0.01, 0.01
OURS = (str(Path(__file__).parent.parent), str(Path(gym.__file__).parent))


@dataclass(frozen=True)
class Finding:
    """One thing that a user should know."""

    level: Level
    what: str
    advice: str = ""


@dataclass
class Report:
    """What an examination found. `flags` of `surefoot train` that follow from it, without those typed by the user."""

    env: str
    described: str
    observation: list[str] = field(default_factory=list)
    action: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    typed: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(finding.level == "error" for finding in self.findings)

    @property
    def recommended(self) -> str:
        return " ".join(["surefoot train", quote(self.env), *self.typed, *self.flags])

    def as_dict(self) -> dict[str, Any]:
        shown = {key: value for key, value in asdict(self).items() if key != "typed"}
        return {**shown, "ok": self.ok, "recommended": self.recommended}


def examine(config: EnvConfig, *, episodes: int = 20, factory: Factory | None = None) -> Report:
    """Everything there is to find. UsageError where there is no such env to examine."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return _Examination(config, episodes, factory, caught).run()


class _Examination:
    def __init__(self, config: EnvConfig, episodes: int, factory: Factory | None, caught: list[Any]) -> None:
        self.config, self.episodes, self.factory, self.caught = config, episodes, factory, caught
        self.report = Report(config.env, config.env, typed=_typed(config))
        self.crashes: dict[tuple[str, str], list[str]] = {}  # (what, where) -> the checks that met it
        self.seen: dict[str, tuple[Finding, int]] = {}  # faults of single steps: the first of its kind, and how many
        self.wanted: dict[str, str] = {}  # flag -> value
        self.mask_source: str | None = None

    def make(self) -> Env:
        return make_env(self.config, self.factory)

    def find(self, level: Level, what: str, advice: str = "") -> None:
        self.report.findings.append(Finding(level, what, advice))

    def once(self, key: str, level: Level, what: str, advice: str = "") -> None:
        """A fault that may come back at every step."""
        first, times = self.seen.get(key, (Finding(level, what, advice), 0))
        self.seen[key] = first, times + 1

    def run(self) -> Report:
        if not self._guard(MAKING, self._look):
            return self._close()
        for name, check in (
            ("reset and step", self._contract),
            ("spaces", self._spaces),
            ("Gymnasium's checker", self._gymnasium),
            ("random play", self._play),
            ("determinism", self._determinism),
            ("rendering", self._rendering),
        ):
            self._guard(name, check)
        if self.report.ok and not self.crashes and not any(f.level == "error" for f, _ in self.seen.values()):
            self._guard("speed", self._speed)
        return self._close()

    def _guard(self, name: str, check: Callable[[], None]) -> bool:
        """Run one check; whether it came to its end."""
        try:
            check()
        except Exception as error:
            if isinstance(error, UsageError) and name == MAKING:  # no such env, or its package is missing
                raise
            cause = error.__cause__ if isinstance(error, EnvError) and error.__cause__ is not None else error
            known = isinstance(cause, SurefootError)
            what = str(cause) if known else f"{type(cause).__name__}: {cause}"
            self.crashes.setdefault((what, "" if known else _user_line(cause)), []).append(name)
            return False
        return True

    def _close(self) -> Report:
        for (what, where), names in self.crashes.items():
            self.find("error", f"{', '.join(names)}: {what}", f"look at {where}" if where else "")
        for found, times in self.seen.values():
            more = f" (and {times - 1:,} more like it)" if times > 1 else ""
            self.find(found.level, found.what + more, found.advice)
        self._warnings()
        self.report.findings.sort(key=lambda finding: LEVELS.index(finding.level))
        self.report.flags = [f"{flag} {value}".rstrip() for flag, value in self.wanted.items()]
        return self.report

    def _warnings(self) -> None:
        """Those of the env, of Gymnasium and of its checker, each once, without what the findings say better."""
        texts = {re.sub(r"\x1b\[[0-9;]*m", "", str(one.message)).removeprefix("WARN: ") for one in self.caught}
        said = ("infinity. This is probably too", "different from the unwrapped version")
        for text in sorted(texts):
            if not any(part in text for part in said):
                level: Level = "note" if "we recommend" in text else "warning"
                self.find(level, f"Python or Gymnasium warns: {text.partition(' See https:')[0]}")

    def _look(self) -> None:
        with closing(self.make()) as env:
            self.observation_space, self.action_space = env.observation_space, env.action_space
            self.masks = ActionMasks(self.action_space)
            self.limit, self.metadata = time_limit(env), dict(env.metadata or {})
            inner = env.unwrapped
            limit = "no time limit" if self.limit is None else f"at most {self.limit:,} steps an episode"
            self.report.described = (
                f"{self.config.env or 'env'}: {type(inner).__module__}.{type(inner).__name__}, {limit}"
            )
            self.report.numbers["time_limit"] = self.limit

    def _contract(self) -> None:
        with closing(self.make()) as env:
            obs, info = _reset(env, episode_seed(SEED, 0, 0))
            self.mask_source = self._find_masks(env, info)
            env.action_space.seed(SEED)
            _step(env, self._action(env, env.action_space, obs, info, np.random.default_rng(SEED)))

    def _find_masks(self, env: Env, info: dict[str, Any]) -> str | None:
        source = None
        if isinstance(self.observation_space, spaces.Dict) and MASK in self.observation_space.spaces:
            source = "observation"
        elif env.has_wrapper_attr("action_masks"):
            source = "method"
        elif MASK in info:
            source = "info"
        if source is not None and not self.masks.size:
            self.find("warning", f"an action mask ({source}), but {self.action_space} has nothing to mask")
            return None
        if source is not None:
            place = {
                "observation": f"the observation's '{MASK}'",
                "method": "action_masks()",
                "info": f"info['{MASK}']",
            }
            self.find("note", f"action masks: from {place[source]}, {self.masks.size} entries")
        return source

    def _spaces(self) -> None:
        for what, space, lines in (
            ("observation", self.observation_space, self.report.observation),
            ("action", self.action_space, self.report.action),
        ):
            try:
                if what == "action":
                    check_action_space(space)
                masked = self.masks.size if what == "observation" and self.mask_source else 0
                layout = Layout(space, masked)
            except UsageError as error:
                lines.append(str(space))
                self.find("error", f"the {what} space is not supported: {error}")
                continue
            for leaf in layout.leaves:
                name = f"{leaf.path}: " if leaf.path else ""
                choices = f" of {'×'.join(map(str, leaf.sizes[:8]))} choices" if leaf.sizes else ""
                bounds = f" in [{leaf.low:g}, {leaf.high:g}]" if leaf.kind in ("vector", "image") else ""
                lines.append(f"{name}{leaf.kind} {leaf.shape} {leaf.dtype}{choices}{bounds}")

    def _gymnasium(self) -> None:
        if self.mask_source is not None:
            return  # it knows no masks, and would blame the env for what it does with illegal actions
        with closing(self.make()) as env:
            try:
                check_env(env.unwrapped, skip_render_check=True)
            except Exception as error:
                # What it asserts itself need not hinder training; what the env raised is the env's fault.
                if "env_checker" not in traceback.extract_tb(error.__traceback__)[-1].filename:
                    raise
                self.find("warning", f"Gymnasium's checker objects: {error}")

    def _action(self, env: Env, space: Space, obs: Any, info: dict[str, Any], rng: np.random.Generator) -> Any:
        """A random action, legal where there is a mask."""
        if self.mask_source is None:
            return space.sample()
        try:
            row = self.masks.flat(read_mask(env, obs, info, self.mask_source))
        except (ValueError, TypeError, KeyError) as error:
            self.once("mask", "error", f"the action mask is not valid: {error}", f"the action space is {space}")
            return space.sample()
        return _legal(space, iter(np.split(row, np.cumsum(self.masks.sizes)[:-1])), rng)

    def _play(self) -> None:
        tally = _Tally()
        try:
            with closing(self.make()) as env:
                self._play_episodes(env, tally)
        finally:  # what was seen before a crash is still worth saying
            self._judge_observations(tally)
            self._judge_rewards(tally)
            self._judge_episodes(tally)

    def _play_episodes(self, env: Env, tally: _Tally) -> None:
        rng, space, stop = np.random.default_rng(SEED), env.action_space, perf_counter() + PLAY_SECONDS
        space.seed(SEED)
        longest = self.limit or ENDLESS
        for episode in range(self.episodes):
            seed = episode_seed(SEED, 0, episode)
            obs, info = _reset(env, seed)
            where = f"seed {seed}, episode {episode}"
            self._check_obs(obs, f"{where}, reset", tally)
            total, length, ended, cut = 0.0, 0, False, False
            while not (ended or cut):
                if perf_counter() > stop or length >= longest:
                    tally.open = length
                    return
                action = self._action(env, space, obs, info, rng)
                obs, pay, ended, cut, info = _step(env, action)
                length += 1
                total += self._check_reward(pay, f"{where}, step {length}", tally)
                for name, flag in (("terminated", ended), ("truncated", cut)):
                    if not isinstance(flag, (bool, np.bool_)):
                        self.once(name, "warning", f"{name} is {flag!r} ({type(flag).__name__}); it must be a bool")
                self._check_obs(obs, f"{where}, step {length}", tally)
            tally.returns.append(total)
            tally.lengths.append(length)
            tally.terminated += bool(ended)

    def _check_reward(self, pay: Any, where: str, tally: _Tally) -> float:
        try:
            number = as_number(pay, "reward", where)
        except EnvError as error:
            self.once("reward", "error", str(error))
            return 0.0
        if not np.isfinite(number):
            self.once("finite reward", "error", f"the reward is {number} ({where})", "training stops at such a step")
            return 0.0
        tally.rewards.append(number)
        return number

    def _check_obs(self, obs: Any, where: str, tally: _Tally) -> None:
        try:
            leaves = list(_walk(self.observation_space, obs))
        except (KeyError, IndexError, TypeError) as error:
            what = f"the observation has not the structure of its space: {type(error).__name__} {error} ({where})"
            self.once("structure", "error", what, f"the space is {self.observation_space}")
            return
        for path, space, value in leaves:
            self._check_leaf(path, space, value, where, tally)

    def _check_leaf(self, path: str, space: Space, value: Any, where: str, tally: _Tally) -> None:
        name = f"observation '{path}'" if path else "the observation"
        if space.shape is None or not isinstance(
            space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
        ):
            if not space.contains(value):
                self.once(f"{path} outside", "error", f"{name} is outside its space {space} ({where})")
            return
        array = np.asarray(value)
        if array.shape != space.shape:
            what = f"{name} has the shape {array.shape}; its space says {space.shape} ({where})"
            self.once(f"{path} shape", "error", what, "return what the space declares, or declare what you return")
            return
        if not np.can_cast(array.dtype, space.dtype or array.dtype, casting="same_kind"):
            what = f"{name} is of {array.dtype}; its space says {space.dtype} ({where})"
            self.once(f"{path} dtype", "error", what, f"return it .astype(np.{space.dtype})")
            return
        if array.dtype != space.dtype and isinstance(space, spaces.Box):
            self.once(f"{path} dtype", "warning", f"{name} is of {array.dtype}; its space says {space.dtype} ({where})")
        if not np.isfinite(array).all():
            what = f"{name} is not finite: NaN or inf ({where}): {np.array2string(array, threshold=8)}"
            self.once(f"{path} finite", "error", what, "training stops at such a step")
            return
        tally.observe(path, space, array)

    def _judge_observations(self, tally: _Tally) -> None:
        table = self.report.numbers.setdefault("observation", {})
        for path, seen in tally.leaves.items():
            if path == MASK and self.mask_source == "observation":
                continue
            name = f"observation '{path}'" if path else "the observation"
            low, high = _bounds(seen.space)
            if (seen.low < low).any() or (seen.high > high).any():
                level: Level = "warning" if isinstance(seen.space, spaces.Box) else "error"
                what = f"{name} leaves its space: {_outside(seen.low, seen.high, low, high)}"
                self.find(level, what, "widen the declared space")
            if not isinstance(seen.space, spaces.Box):
                continue
            std, largest = seen.std, float(np.maximum(abs(seen.low), abs(seen.high)).max())
            table[path] = {"min": float(seen.low.min()), "max": float(seen.high.max()), "std": float(std.mean())}
            if _is_image(seen.space):
                continue
            small = int(((std > 0) & (std < SMALL_STD)).sum())
            if largest > LARGE_INPUT or small:
                scale = (
                    f"|x| up to {largest:.4g}" if largest > LARGE_INPUT else f"{small} numbers with std < {SMALL_STD}"
                )
                self.find("warning", f"{name} is badly scaled for a network: {scale}", "--normalize-observations")
                self.wanted["--normalize-observations"] = ""
            elif not (np.isfinite(low).all() and np.isfinite(high).all()):
                self.find("note", f"{name} is unbounded; its scale may change in training", "--normalize-observations")
                self.wanted["--normalize-observations"] = ""
            if seen.count > 1 and (fixed := int((std == 0).sum())):
                self.find("note", f"{name}: {fixed} of {std.size} numbers never changed under random actions")

    def _judge_rewards(self, tally: _Tally) -> None:
        if not tally.rewards:
            return
        rewards = np.array(tally.rewards)
        nonzero = float((rewards != 0).mean())
        self.report.numbers["reward"] = _summary(rewards) | {"nonzero": nonzero}
        if tally.returns:
            self.report.numbers["return"] = _summary(np.array(tally.returns))
        largest = float(abs(rewards).max())
        if largest > LARGE_REWARD:
            scale = 10.0 ** -np.ceil(np.log10(largest))
            advice = f"--normalize-rewards, or --reward-scale {scale:g}"
            self.find("warning", f"rewards are large: |reward| up to {largest:.4g}", advice)
            self.wanted["--normalize-rewards"] = ""
        if nonzero == 0:
            advice = "random actions must now and then be paid, or there is nothing to learn from: shape the reward"
            self.find("warning", f"no reward in {rewards.size:,} random steps", advice)
        elif nonzero < SPARSE:
            what = f"rewards are sparse: {nonzero:.2%} of {rewards.size:,} random steps"
            self.find("note", what, "longer rollouts and an entropy bonus (--entropy-coef) help")

    def _judge_episodes(self, tally: _Tally) -> None:
        numbers, ended = self.report.numbers, len(tally.lengths)
        numbers["episodes"] = {"ended": ended, "terminated": tally.terminated, "truncated": ended - tally.terminated}
        if ended:
            lengths = np.array(tally.lengths)
            numbers["length"] = {
                "min": int(lengths.min()),
                "median": float(np.median(lengths)),
                "max": int(lengths.max()),
            }
        if tally.open is None:
            return
        if self.limit is None and (not ended or tally.open >= ENDLESS):
            steps = 1_000
            what = f"no time limit, and an episode did not end in {tally.open:,} random steps"
            self.find("warning", what, f"--max-episode-steps {steps}")
            self.wanted["--max-episode-steps"] = str(steps)
        elif self.limit is not None and tally.open >= self.limit:
            self.find("warning", f"the env says at most {self.limit:,} steps an episode and did not end one there")
        elif not ended:
            self.find("note", f"no episode ended within {PLAY_SECONDS:g} s ({tally.open:,} steps)")

    def _determinism(self) -> None:
        """Played, played in a fresh env, and played again in the first after another episode was left half-way."""
        seed = episode_seed(SEED, 1, 0)
        with closing(self.make()) as first, closing(self.make()) as fresh:
            first.action_space.seed(SEED)
            actions: list[Any] = []
            original = self._trace(first, seed, actions, record=True)
            again = self._trace(fresh, seed, actions)
            self._trace(first, episode_seed(SEED, 1, 1), [], record=True)
            replayed = self._trace(first, seed, actions)
        apart, unlike = _first_difference(original, again), _first_difference(original, replayed)
        exact = apart is None and unlike is None
        self.report.numbers["deterministic"], self.report.numbers["exact_resume"] = apart is None, exact
        if apart is not None:
            what = f"not deterministic: two fresh envs with one seed and the same actions part {apart}"
            self.find("warning", what, "draw only from self.np_random; until then no run can be repeated")
        if exact:
            self.find("note", "exact resume: yes (the same seed and actions bring an episode back)")
        else:
            what = f"exact resume: no (reset again with the same seed, an episode parts {unlike or apart})"
            self.find("warning", what, "a resumed run starts its open episodes afresh; reset everything in reset()")

    def _trace(self, env: Env, seed: int, actions: list[Any], record: bool = False) -> list[tuple[Any, ...]]:
        """(observation, reward, ends) of every step; `record`: with actions drawn now, into `actions`."""
        rng, stop = np.random.default_rng(SEED), perf_counter() + REPLAY_SECONDS
        obs, info = _reset(env, seed)
        trace: list[tuple[Any, ...]] = [(self._frozen(obs), 0.0, False, False)]
        while len(trace) <= (REPLAY_STEPS if record else len(actions)) and not (trace[-1][2] or trace[-1][3]):
            if record:
                if perf_counter() > stop:
                    break
                actions.append(self._action(env, env.action_space, obs, info, rng))
            obs, pay, ended, cut, info = _step(env, actions[len(trace) - 1])
            trace.append((self._frozen(obs), pay, bool(ended), bool(cut)))
        return trace

    def _frozen(self, obs: Any) -> list[tuple[str, Any]]:
        return [(path, np.array(value)) for path, _, value in _walk(self.observation_space, obs)]

    def _rendering(self) -> None:
        if "rgb_array" in (self.metadata.get("render_modes") or ()):
            self.find("note", "rendering: rgb_array is declared, so `surefoot video` can film it")
        else:
            advice = "add it to metadata['render_modes'] and render() for `surefoot video`"
            self.find("note", "rendering: rgb_array is not declared", advice)

    def _speed(self) -> None:
        begun = perf_counter()
        with closing(self.make()) as env:
            env.action_space.seed(SEED)
            obs, info = _reset(env, episode_seed(SEED, 2, 0))
            starting = perf_counter() - begun
            rng, steps, episode, begun = np.random.default_rng(SEED), 0, 0, perf_counter()
            while (spent := perf_counter() - begun) < SPEED_SECONDS:
                obs, _, ended, cut, info = _step(env, self._action(env, env.action_space, obs, info, rng))
                steps += 1
                if ended or cut:
                    episode += 1
                    obs, info = _reset(env, episode_seed(SEED, 2, episode))
        alone = steps / spent
        self.report.numbers["steps_per_second"] = {"alone": alone}
        together = self.report.numbers["steps_per_second_together"] = {}
        for count in COUNTS:
            if count * starting <= START_SECONDS:
                together[str(count)] = self._speed_of(count)
        # So many that calling the policy costs little beside the envs; at least 4, whose samples are less alike.
        share = 5 * POLICY_SECONDS * alone
        self.wanted = {"--num-envs": str(next((n for n in COUNTS[1:] if n >= share), COUNTS[-1])), **self.wanted}

    def _speed_of(self, count: int) -> float:
        with closing(GymEnvs(self.make, count, SEED)) as envs:
            envs.action_space.seed(SEED)
            rng, rounds, rows, begun = np.random.default_rng(SEED), 0, envs.reset(), perf_counter()
            while (spent := perf_counter() - begun) < SPEED_SECONDS:
                rows = envs.step([self._action_of_row(envs, row, rng) for row in rows]).obs
                rounds += 1
        return rounds * count / spent

    @staticmethod
    def _action_of_row(envs: GymEnvs, row: Array, rng: np.random.Generator) -> Any:
        if envs.layout.mask is None:
            return envs.action_space.sample()
        legal = row[envs.layout.mask] > 0
        return _legal(envs.action_space, iter(np.split(legal, np.cumsum(envs.masks.sizes)[:-1])), rng)


class _Seen:
    """Running range and spread of every number of a leaf."""

    def __init__(self, space: Space, first: Array) -> None:
        self.space, self.count = space, 0
        self.low, self.high = first.astype(np.float64), first.astype(np.float64)
        self.mean, self.squares = np.zeros(first.shape), np.zeros(first.shape)

    def add(self, value: Array) -> None:
        self.count += 1
        np.minimum(self.low, value, out=self.low)
        np.maximum(self.high, value, out=self.high)
        change = value - self.mean
        self.mean += change / self.count
        self.squares += change * (value - self.mean)

    @property
    def std(self) -> Array:
        return np.sqrt(self.squares / self.count)


class _Tally:
    """What random play saw."""

    def __init__(self) -> None:
        self.rewards: list[float] = []
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.terminated = 0
        self.open: int | None = None  # steps of the episode that was given up
        self.leaves: dict[str, _Seen] = {}

    def observe(self, path: str, space: Space, value: Array) -> None:
        value = np.asarray(value, np.float64)
        if path not in self.leaves:
            self.leaves[path] = _Seen(space, value)
        self.leaves[path].add(value)


def _typed(config: EnvConfig) -> list[str]:
    """The user's own flags, as they go on the recommended command line."""
    words = []
    if config.env_kwargs:
        words += ["--env-kwargs", quote(json.dumps(config.env_kwargs))]
    if config.wrappers:
        words += ["--wrappers", *map(quote, config.wrappers)]
    if config.max_episode_steps is not None:
        words += ["--max-episode-steps", str(config.max_episode_steps)]
    return words


def _reset(env: Env, seed: int) -> tuple[Any, dict[str, Any]]:
    found: Any = env.reset(seed=seed, options=None)
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], dict):
        got = f"{len(found)} values" if isinstance(found, tuple) and len(found) != 2 else _type_names(found)
        raise EnvError(f"reset returned {got}; it must return two: (observation, info), the info a dict")
    return found


def _step(env: Env, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    found: Any = env.step(action)
    if not isinstance(found, tuple) or len(found) != 5 or not isinstance(found[4], dict):
        got = f"{len(found)} values" if isinstance(found, tuple) and len(found) != 5 else _type_names(found)
        raise EnvError(
            f"step returned {got}; it must return five: (observation, reward, terminated, truncated, info), "
            "the info a dict"
        )
    return found


def _type_names(found: Any) -> str:
    return ", ".join(type(one).__name__ for one in found) if isinstance(found, tuple) else type(found).__name__


def _walk(space: Space, value: Any, path: str = "") -> Iterator[tuple[str, Space, Any]]:
    """(path, space, value) of every leaf."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        yield path, space, value
        return
    parts: Any = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    for key, part in parts:
        yield from _walk(part, value[key], f"{path}/{key}" if path else str(key))


def _legal(space: Space, masks: Iterator[Array], rng: np.random.Generator) -> Any:
    """A random action within masks, which come in the order of `choices(space)`."""
    if isinstance(space, spaces.Discrete):
        return space.start + rng.choice(np.flatnonzero(next(masks)))
    if isinstance(space, spaces.MultiDiscrete):
        drawn = [rng.choice(np.flatnonzero(next(masks))) for _ in range(space.nvec.size)]
        return (np.reshape(drawn, space.nvec.shape) + space.start).astype(space.dtype)
    if isinstance(space, spaces.Dict):
        return {key: _legal(part, masks, rng) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_legal(part, masks, rng) for part in space.spaces)
    return space.sample()


def _bounds(space: Space) -> tuple[Array, Array]:
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        return np.asarray(space.start), np.asarray(space.start + space.n - 1)
    if isinstance(space, spaces.MultiDiscrete):
        return np.asarray(space.start), np.asarray(space.start + space.nvec - 1)
    return np.asarray(0), np.asarray(1)


def _outside(lowest: Array, highest: Array, low: Array, high: Array) -> str:
    """The first number that left its bounds: found and declared."""
    index = int(np.argmax((lowest < low) | (highest > high)))
    found = [np.broadcast_to(array, lowest.shape).reshape(-1)[index] for array in (lowest, highest, low, high)]
    which = f"number {index} " if lowest.ndim else ""
    return which + "was in [{:g}, {:g}], declared is [{:g}, {:g}]".format(*found)


def _is_image(space: spaces.Box) -> bool:
    return len(space.shape) >= 3 or (len(space.shape) == 2 and space.dtype == np.uint8)


def _summary(values: Array) -> dict[str, float]:
    return {name: float(getattr(values, name)()) for name in ("mean", "std", "min", "max")}


def _first_difference(one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> str | None:
    """Where two traces part, in words."""
    for step, (left, right) in enumerate(zip(one, other, strict=False)):
        when = f"at step {step}" if step else "at the reset"
        for (path, value), (_, second) in zip(left[0], right[0], strict=True):
            if value.shape != second.shape or not np.array_equal(value, second, equal_nan=value.dtype.kind == "f"):
                return f"{when} in the observation" + (f" '{path}'" if path else "")
        if not np.array_equal(left[1], right[1], equal_nan=isinstance(left[1], float)):
            return f"{when} in the reward"
        if left[2:] != right[2:]:
            return f"{when} in how the episode ends"
    return None


def _user_line(error: BaseException) -> str:
    """The innermost line of the traceback that is the user's: `file:line, in name: code`."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(OURS)]
    frame = (theirs or list(frames))[-1]
    return f"{frame.filename}:{frame.lineno}, in {frame.name}: {frame.line}"
