"""One run of a population, as its own training loop sees it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from surefoot.engine.cuda.population.flight import MOST_PAGES
from surefoot.engine.cuda.population.iteration import Population
from surefoot.engine.cuda.population.serving import kernels_of
from surefoot.engine.cuda.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from surefoot.engine.contract import Done, Several, Turn
    from surefoot.engine.cuda.population.flight import Flight
    from surefoot.engine.cuda.population.iteration import Parts


class Member:
    """`Iterations` that are begun for all members at once, never by the member itself."""

    def __init__(self, population: Population, agent: int) -> None:
        """`agent`: its place in the population."""
        self.population, self.agent = population, agent
        self.flight: Flight | None = None

    @property
    def busy(self) -> bool:
        return self.flight is not None

    @property
    def ahead(self) -> bool:
        return False

    @property
    def at_once(self) -> bool:
        return True

    @property
    def more(self) -> bool:
        return self.flight is not None

    def begin(self, update: int, remaining: float) -> bool:
        return False

    def end(self) -> Done | None:
        assert self.flight is not None
        done, last = self.flight.end(self.agent)
        if last:
            self.flight = None
        return done

    def rest(self) -> Several | None:
        assert self.flight is not None
        several = self.flight.rest(self.agent)
        if several is not None:
            self.flight = None
        return several

    def take_back(self) -> None:
        """After this the run's own tensors are its present state, and may be changed."""
        flight, self.flight = self.flight, None
        if flight is None:
            self.leave()
        else:
            flight.redo(self.agent)

    def leave(self) -> None:
        self.population.give(self.agent)


class Members:
    """`Together` on a GPU: one population for each set of kernels that the members need."""

    most = MOST_PAGES

    def __init__(self, parts: Sequence[Parts]) -> None:
        for part in parts:  # its own updates are too few to be worth recording, and graphs keep memory
            part.learner.recorder.enabled = False
        alike: dict[object, list[int]] = {}
        for agent, part in enumerate(parts):
            alike.setdefault(kernels_of(part), []).append(agent)
        self.populations = [Population([parts[agent] for agent in own], Recorder()) for own in alike.values()]
        found = [
            (agent, Member(population, place))
            for population, own in zip(self.populations, alike.values(), strict=True)
            for place, agent in enumerate(own)
        ]
        self._members = dict(found)

    def member(self, agent: int) -> Member:
        return self._members[agent]

    def begin(self, turns: Sequence[Turn]) -> None:
        for population in self.populations:
            self._begin(population, [turn for turn in turns if self._members[turn.agent].population is population])

    def _begin(self, population: Population, turns: Sequence[Turn]) -> None:
        """A member that had to do an update by itself is behind the others, who do not wait for it."""
        updates = Counter(turn.update for turn in turns)
        alike = [turn for turn in turns if turn.update == updates.most_common(1)[0][0]]
        flight = population.begin([turn._replace(agent=self._members[turn.agent].agent) for turn in alike])
        for turn in alike:
            self._members[turn.agent].flight = flight
