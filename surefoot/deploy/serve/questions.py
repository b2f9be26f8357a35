"""What a client asks: a JSON object with observations, checked before any of it is used."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from surefoot.errors import SurefootError, did_you_mean
from surefoot.spaces import plain
from surefoot.spaces.given import given_rows
from surefoot.spaces.masks import ActionMasks
from surefoot.spaces.rows import CHOICES, MASK
from surefoot.text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from surefoot.deploy.program import Program
    from surefoot.types import Array

SINGLE = ("observation", "state", "action_mask")
BATCH = ("observations", "states", "action_masks")
FLAG = "deterministic"
LONGEST_REASON = 400  # characters of an error
# What a value from a stranger can make NumPy raise.
NO_NUMBERS = (ValueError, TypeError, OverflowError, RecursionError)


class Refusal(Exception):
    """A request that gets no action, and the status to answer with."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(one_line(why, LONGEST_REASON))  # it may quote the request
        self.status = status


@dataclass(frozen=True)
class Question:
    rows: Array  # [n, W] float32, of the policy's layout
    memory: Array | None  # [n, M] float32
    deterministic: bool
    single: bool  # one observation, not a list with one


class Reader:
    """Reads questions for one policy. `most`: observations in one request."""

    def __init__(self, program: Program, most: int) -> None:
        self._layout, self._memory_size, self._most = program.layout, program.memory_size, most
        self._masks = ActionMasks(program.action_space)
        self._whole = program.columns is None  # else clients may send what only the critic saw, too
        self._choices = [leaf for leaf in program.layout.leaves if leaf.kind in CHOICES]

    def read(self, body: bytes) -> Question:
        asked = _parsed(body)
        single = "observation" in asked
        names = SINGLE if single else BATCH
        if names[0] not in asked:
            raise Refusal(422, "the request has neither observation nor observations")
        if unknown := asked.keys() - {*names, FLAG}:
            name = min(unknown)[:LONGEST_REASON]
            raise Refusal(422, f"{name!r} is unknown here{did_you_mean(name, (*names, FLAG))}")
        deterministic = asked.get(FLAG, True)
        if not isinstance(deterministic, bool):
            raise Refusal(422, f"{FLAG} is not true or false")
        seen, states, masks = (asked.get(name) for name in names)
        if single:
            seen, states, masks = [seen], None if states is None else [states], None if masks is None else [masks]
        given = self._listed(seen, names[0])
        return Question(
            self._rows(given, self._listed(masks, names[2], len(given))),
            self._memory(self._listed(states, names[1], len(given)), len(given)),
            deterministic,
            single,
        )

    def _listed(self, value: object, name: str, count: int | None = None) -> Sequence[object]:
        if value is None and count is not None:
            return [None] * count
        if not isinstance(value, list) or not value:
            raise Refusal(422, f"{name} is not a list with anything in it")
        if count is not None and len(value) != count:
            raise Refusal(422, f"{name} has {len(value)} entries for {count} observations")
        if len(value) > self._most:
            raise Refusal(413, f"{name} has {len(value)} entries; at most {self._most} are taken at once")
        return value

    def _rows(self, given: Sequence[object], masks: Sequence[object]) -> Array:
        if any(mask is not None for mask in masks) and (not self._layout.mask_size or self._layout.mask_in_obs):
            why = "is a part of its observations" if self._layout.mask_in_obs else "was not used to train this policy"
            raise Refusal(422, f"an action mask {why}")
        rows = [self._row(one, mask) for one, mask in zip(given, masks, strict=True)]
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

    def _row(self, observation: object, mask: object) -> Array:
        if self._whole and (unknown := _unknown(self._layout.tree, observation)):
            raise Refusal(422, f"the observation has {unknown!r}, which the policy's space does not have")
        try:
            if self._layout.mask_in_obs and isinstance(observation, dict):
                self._masks.flat(observation.get(MASK))
        except NO_NUMBERS as error:
            raise Refusal(422, f"not an action mask of this policy: {error}") from None
        try:
            row, one = given_rows(self._layout, self._masks, observation, mask)  # type: ignore[arg-type]
        except (SurefootError, *NO_NUMBERS) as error:
            raise Refusal(422, str(error)) from None
        if not one:
            raise Refusal(422, "this is a batch; send it as observations")
        if row.dtype.kind not in "fiub":
            raise Refusal(422, "an observation must be made of numbers")
        with np.errstate(over="ignore"):
            numbers = row.astype(np.float32).reshape(1, -1)
        if not np.isfinite(numbers).all():
            raise Refusal(422, "an observation has numbers that float32 cannot hold")
        for leaf in self._choices:
            chosen, sizes = numbers[0, leaf.span], np.array(leaf.sizes or (2,) * leaf.size)
            if not ((chosen >= 0) & (chosen < sizes) & (chosen == np.floor(chosen))).all():
                raise Refusal(422, f"{leaf.name} has a choice that its space does not have")
        return numbers

    def _memory(self, states: Sequence[object], count: int) -> Array | None:
        if not self._memory_size:
            if any(state is not None for state in states):
                raise Refusal(422, "this policy has no memory, so there is no state to send")
            return None
        memory = np.zeros((count, self._memory_size), np.float32)
        for row, state in zip(memory, states, strict=True):
            if state is None:  # the start of an episode
                continue
            try:
                with np.errstate(over="ignore"):
                    numbers = np.asarray(state, np.float32)
            except NO_NUMBERS:
                raise Refusal(422, "a state is a list of numbers, as the last answer had it") from None
            if numbers.shape != row.shape or not np.isfinite(numbers).all():
                raise Refusal(422, f"a state has {self._memory_size} finite numbers, as the last answer had it")
            row[:] = numbers
        return memory


def _unknown(space: plain.Space, value: object) -> str:
    """The path of a part that the space does not have, or nothing."""
    if isinstance(space, plain.Dict) and isinstance(value, dict):
        inner, parts = {str(key): part for key, part in space.spaces.items()}, value
    elif isinstance(space, plain.Tuple) and isinstance(value, list):
        inner, parts = ({str(at): part for at, part in enumerate(each)} for each in (space.spaces, value))
    else:
        return ""
    for key, part in parts.items():
        if key not in inner:
            return str(key)
        if below := _unknown(inner[key], part):
            return f"{key}/{below}"
    return ""


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


DECODER = json.JSONDecoder(parse_constant=_no_constant)  # making one takes as long as using it


def _parsed(body: bytes) -> dict[str, object]:
    try:
        found = DECODER.decode(body.decode())
    except NO_NUMBERS as error:  # bad JSON and bad UTF-8 are ValueErrors
        raise Refusal(400, f"the request is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Refusal(400, "the request is not a JSON object")
    return found
