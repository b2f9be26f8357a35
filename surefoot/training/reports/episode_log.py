"""`episodes.csv`: every training episode, with the seed that starts it again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from surefoot.engine.episodes import of_first_envs, rows_of
from surefoot.runs.episodes import header
from surefoot.training.callbacks import Callback
from surefoot.types import Numbered

if TYPE_CHECKING:
    from surefoot.engine.contract import Several
    from surefoot.engine.episodes import Episode
    from surefoot.runs.files import LinesFile
    from surefoot.training.trainer import Trainer
    from surefoot.types import MetricsRow

MANY, SECONDS = 1000, 1.0  # lines are formatted and written after this many episodes or seconds
MOST_WAITING = 2**24  # bytes of rows kept in memory while the disk is full: about 400,000 episodes


class Ended(NamedTuple):
    """The episodes that ended in a rollout. `begun`: each row's first episode number, if it began with a reset."""

    step: int | list[int]  # after the rollout, or after the one in which each of them ended
    seconds: float
    episodes: Sequence[Episode]
    begun: list[int]


class EpisodeLog(Callback):
    """Collects ended episodes and writes them in batches: of many, once a second, or for a checkpoint.

    A fast run ends ten thousand episodes per second, so a line may cost only a microsecond. Writing after every rollout
    would cost many times that, because the kernels evict this code and data from the processor's caches.
    """

    reads_tensors, may_wait = False, True

    def __init__(self, log: LinesFile, info_keys: Sequence[str] = ()) -> None:
        self._log, self._info_keys = log, tuple(info_keys)
        self._ended: list[Ended] = []
        self._envs: Numbered | None = None
        self._numbers: list[int] = []  # episode number of each row, when the envs were last asked
        self._count, self._due = 0, 0.0  # episodes in `_ended`; training time at which they are written
        self._anew = self._full = False
        self._later = False  # lines are written while a GPU learns; numbered episodes must be asked for at once
        log.prepare = self._make_lines
        if not log.size and not log.pending:
            log.pending.append(header(self._info_keys))

    def on_start(self, trainer: Trainer) -> None:
        self._anew = trainer.collector.reset_each_rollout
        # The numbers of other processes' episodes are not known here.
        if isinstance(trainer.envs, Numbered) and trainer.group.size == 1:
            self._envs, self._numbers = trainer.envs, trainer.envs.episode_numbers()
        self._later = self._envs is None and trainer.device.type == "cuda"

    def on_update(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        episodes = of_first_envs(trainer.journal.latest)
        if not self._full and (episodes or self._anew):
            self._ended.append(Ended(trainer.step, trainer.seconds, episodes, self._begun() if self._anew else []))
            self._count += len(episodes)
        self._write_if_due(trainer)

    def on_updates(self, trainer: Trainer, several: Several) -> None:
        """The same of several updates at once, none of which begins with a reset."""
        if not self._full and several.episodes:
            steps = trainer.step - several.steps * (several.updates - 1 - several.number)
            self._ended.append(Ended(steps.tolist(), trainer.seconds, several.episodes, []))
            self._count += len(several.episodes)
        self._write_if_due(trainer)

    def _write_if_due(self, trainer: Trainer) -> None:
        if self._count >= MANY or (trainer.seconds >= self._due and self._count):
            self._count, self._due = 0, trainer.seconds + SECONDS
            if self._later:
                trainer.errands.append(self._log.flush)
            else:
                self._log.flush()

    def on_log(self, trainer: Trainer, row: MetricsRow, timing: dict[str, float]) -> None:
        full = self._log.error is not None and sum(map(len, self._log.pending)) > MOST_WAITING
        if full and not self._full:
            trainer.warn(f"too many rows wait for {self._log.path}; until the disk takes them, no episode is logged")
        self._full = full

    def _make_lines(self) -> None:
        ended, self._ended = self._ended, []
        if not ended:
            return
        seeds, rows = iter(self._seeds(ended)), list[str]()
        for step, seconds, episodes, _ in ended:
            infos = [self._info(episode) for episode in episodes] if self._info_keys else [""] * len(episodes)
            end, steps = f"{seconds:.3f}\n", repeat(step) if isinstance(step, int) else step
            rows += [
                f"{at},{ret!r},{length},{seed},{env},{info}{end}"
                for at, (env, ret, length), info, seed in zip(steps, rows_of(episodes), infos, seeds, strict=False)
            ]
        if rows:
            self._log.pending.append("".join(rows).encode())

    def _info(self, episode: Episode) -> str:
        return "".join([f"{episode.info.get(key, '')}," for key in self._info_keys])

    def _seeds(self, ended: list[Ended]) -> Sequence[int | str]:
        """The seeds of these episodes, in order; empty strings where they do not exist or are not known."""
        if self._envs is None:
            return [""] * sum(len(rollout.episodes) for rollout in ended)
        rows = [episode.env for rollout in ended for episode in rollout.episodes]
        if self._anew:
            return self._envs.episode_seeds(rows, [each.begun[e.env] for each in ended for e in each.episodes])
        numbers, unknown = self._next_numbers(rows)
        seeds = self._envs.episode_seeds(rows, numbers)
        return ["" if row in unknown else seed for row, seed in zip(rows, seeds, strict=True)] if unknown else seeds

    def _begun(self) -> list[int]:
        """The episode numbers when a rollout begins with a reset; only episodes that begin there are logged."""
        if self._envs is None:
            return []
        before, agents = self._numbers, self._envs.num_agents
        self._numbers = self._envs.episode_numbers()
        if agents > 1:  # an agent that left the episode early was ahead of the others
            before = [min(before[row - row % agents :][:agents]) for row in range(len(before))]
        return [number + 1 for number in before]

    def _next_numbers(self, rows: list[int]) -> tuple[list[int], set[int]]:
        """(the number of each episode, the rows in which it is uncertain). Episodes that a lost worker cut short, and
        those of a rollout in which the run failed, have numbers too but are not in the log.
        """
        assert self._envs is not None
        following, numbers = [max(number, 0) for number in self._numbers], []
        for row in rows:
            numbers.append(following[row])
            following[row] += 1
        self._numbers = now = self._envs.episode_numbers()
        return numbers, set() if following == now else {row for row in set(rows) if following[row] != now[row]}
