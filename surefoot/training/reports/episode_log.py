"""`episodes.csv`: every training episode, with the seed that plays it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from surefoot.envs.seeds import EpisodeSeeds
from surefoot.runs.episodes import header
from surefoot.training.callbacks import Callback
from surefoot.types import Numbered

if TYPE_CHECKING:
    from surefoot.engine.episodes import Episode
    from surefoot.runs.files import LinesFile
    from surefoot.training.trainer import Trainer

MOST_WAITING = 2**24  # bytes of rows that a full disk may leave in memory: about 400,000 episodes


class EpisodeLog(Callback):
    """Turns the episodes of each rollout into lines; `FileLog` sends them to the disk with its own rows.

    A fast run ends thousands of episodes a second, so that a line may cost about a microsecond.
    """

    def __init__(self, log: LinesFile, info_keys: Sequence[str], run_seed: int) -> None:
        self._log, self._info_keys, self._seeds = log, tuple(info_keys), EpisodeSeeds(run_seed)
        self._envs: Numbered | None = None
        self._numbers: list[int] = []  # of the open episodes, when they were last looked at
        self._dropped = 0  # rows that there was no room for, neither on the disk nor in memory
        if not log.size and not log.pending:
            log.pending.append(header(self._info_keys))

    def on_start(self, trainer: Trainer) -> None:
        if isinstance(trainer.envs, Numbered):
            self._envs, self._numbers = trainer.envs, trainer.envs.episode_numbers()

    def on_update(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        finished = trainer.journal.latest
        anew = trainer.collector.reset_each_rollout
        if not finished and not anew:
            return
        rows = self._rows(trainer.step, trainer.seconds, finished, self._seeds_of(finished, anew))
        if self._log.error is not None and sum(map(len, self._log.pending)) > MOST_WAITING:
            if not self._dropped:
                trainer.warn(f"{self._log.path}: too many rows wait for the disk; further episodes are not logged")
            self._dropped += len(finished)
        elif rows:
            self._log.pending.append("".join(rows).encode())

    def _rows(self, step: int, seconds: float, finished: list[Episode], seeds: list[int | str]) -> list[str]:
        end, pairs = f",{seconds:.3f}\n", zip(finished, seeds, strict=True)
        rows = [f"{step},{each.ret!r},{each.length},{seed},{each.env}" for each, seed in pairs]
        for key in self._info_keys:
            rows = [f"{row},{each.info.get(key, '')}" for row, each in zip(rows, finished, strict=True)]
        return [row + end for row in rows]

    def _seeds_of(self, finished: list[Episode], anew: bool) -> list[int | str]:
        """Of these episodes, in order; empty where the envs have no such seeds, or where they cannot be told.

        `anew`: the rollout began with a reset, and of each row only the episode that began there is among them.
        """
        if self._envs is None:
            return [""] * len(finished)
        before, self._numbers = self._numbers, self._envs.episode_numbers()
        agents, seeds = self._envs.num_agents, self._seeds
        if anew:
            copies = [episode.env // agents for episode in finished]
            return [seeds(copy, min(before[copy * agents : (copy + 1) * agents]) + 1) for copy in copies]
        following: dict[int, int] = {}  # the number of each row's next one; -1: not known
        for row, count in Counter([episode.env for episode in finished]).items():
            first = max(before[row], 0)
            # An episode that a lost worker cut short has a number, too, but is not among them.
            following[row] = first if self._numbers[row] - first == count else -1
        found: list[int | str] = []
        for episode in finished:
            row = episode.env
            number = following[row]
            found.append("" if number < 0 else seeds(row // agents, number))
            following[row] += number >= 0
        return found
