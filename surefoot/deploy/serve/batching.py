"""Answers questions that arrive together with one pass through the policy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from surefoot.deploy.choosing import to_env
from surefoot.deploy.serve.questions import Refusal
from surefoot.errors import NonFiniteError

if TYPE_CHECKING:
    from surefoot.deploy.light_agent import LightAgent
    from surefoot.deploy.serve.questions import Question

Answer: TypeAlias = dict[str, object]


class Batcher:
    """Nothing waits for company: whatever has arrived when the event loop is free goes through together.

    `most`: observations in one pass.
    """

    def __init__(self, agent: LightAgent, most: int) -> None:
        self.agent, self.passes = agent, 0
        self._most = most
        self._waiting: list[tuple[Question, asyncio.Future[Answer]]] = []

    async def answer(self, question: Question) -> Answer:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((question, future))
        if len(self._waiting) == 1:
            loop.call_soon(self._flush)
        return await future

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for deterministic in (True, False):
            together: list[tuple[Question, asyncio.Future[Answer]]] = []
            rows = 0
            for question, future in waiting:
                if question.deterministic is not deterministic:
                    continue
                if together and rows + len(question.rows) > self._most:
                    self._settle(together)
                    together, rows = [], 0
                together.append((question, future))
                rows += len(question.rows)
            if together:
                self._settle(together)

    def _settle(self, together: list[tuple[Question, asyncio.Future[Answer]]]) -> None:
        try:
            answers = self._pass([question for question, _ in together])
        except NonFiniteError as error:
            if len(together) > 1:  # only those whose own observation is the reason are refused
                for one in together:
                    self._settle([one])
                return
            _set(together[0][1], Refusal(422, str(error)))
        except Exception as error:  # a fault of ours must not leave clients waiting
            for _, future in together:
                _set(future, error)
        else:
            for (_, future), answer in zip(together, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    def _pass(self, questions: list[Question]) -> list[Answer]:
        first, self.passes = questions[0], self.passes + 1
        rows, memory = first.rows, first.memory
        if len(questions) > 1:
            rows = np.concatenate([question.rows for question in questions])
            kept = [question.memory for question in questions if question.memory is not None]
            memory = np.concatenate(kept) if kept else None
        parts, after = self.agent.act(rows, memory, first.deterministic)
        answers: list[Answer] = []
        begin = 0
        for question in questions:
            own = slice(begin, begin := begin + len(question.rows))
            action = to_env(self.agent.program, [part[own] for part in parts], single=question.single)
            answer: Answer = {"action" if question.single else "actions": _plain(action, question)}
            if after is not None:
                states = after[own].tolist()
                answer |= {"state": states[0]} if question.single else {"states": states}
            answers.append(answer)
        return answers


def _set(future: asyncio.Future[Answer], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _plain(action: object, question: Question) -> object:
    """What JSON can hold: one action, or a list of actions, each in the form of the space."""
    if question.single:
        return _listed(action)
    return [_listed(_at(action, number)) for number in range(len(question.rows))]


def _at(action: object, number: int) -> object:
    if isinstance(action, dict):
        return {key: _at(part, number) for key, part in action.items()}
    if isinstance(action, tuple):
        return tuple(_at(part, number) for part in action)
    assert isinstance(action, np.ndarray)
    return action[number]


def _listed(action: object) -> object:
    if isinstance(action, dict):
        return {str(key): _listed(part) for key, part in action.items()}
    if isinstance(action, tuple):
        return [_listed(part) for part in action]
    assert isinstance(action, (np.ndarray, np.generic))
    return action.tolist()
