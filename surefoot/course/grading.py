"""Graders that say what is wrong.

An exercise knows the right answer and a list of likely mistakes, each as a function of its own. A solution that is not
right is compared with those: if it computes what a mistake computes, on every case, the message names that mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from surefoot.text import one_line, print

CLOSE = 1e-4  # relative and absolute: float32, and room for another order of operations


class Wrong(AssertionError):
    """A solution was rejected. The message says what is wrong with it."""

    def _render_traceback_(self) -> list[str]:
        """What notebooks show: the message without the grader's own frames."""
        return [f"✗ {self}"]


@dataclass(frozen=True)
class Mistake:
    """A wrong solution that people do write, and what to say about it."""

    said: str
    made: Callable[..., object]


@dataclass(frozen=True)
class Exercise:
    """A function to write. `slopes` names the arguments whose gradients are compared as well."""

    asks: str
    truth: Callable[..., object]
    cases: Callable[[], list[Mapping[str, object]]]
    mistakes: tuple[Mistake, ...] = ()
    slopes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    value: Tensor
    slopes: dict[str, Tensor]


def grade(name: str, exercise: Exercise, solution: Callable[..., object]) -> None:
    """Print that the solution is right, or raise `Wrong`."""
    if not callable(solution):
        raise Wrong(f"{name}: pass the function itself, not {one_line(repr(solution))}")
    cases = exercise.cases()
    right = [answer(exercise.truth, case, exercise.slopes) for case in cases]
    given = [_attempt(name, solution, case, exercise.slopes) for case in cases]
    if all(map(same, given, right)):
        print(f"✓ {name}: {exercise.asks}")
        return
    for mistake in exercise.mistakes:
        made = [answer(mistake.made, case, exercise.slopes) for case in cases]
        if all(map(same, given, made)):
            raise Wrong(f"{name}: {mistake.said}")
    raise Wrong(f"{name}: {next(filter(None, map(difference, given, right)))}")


def answer(function: Callable[..., object], case: Mapping[str, object], slopes: tuple[str, ...]) -> Answer:
    """What a function returns for its own copy of the arguments, with the gradients of its sum."""
    arguments = {name: _copy(value, name in slopes) for name, value in case.items()}
    value = as_tensor(function(*arguments.values()))
    for name, before in case.items():
        if isinstance(before, (Tensor, np.ndarray)) and not torch.equal(as_tensor(before), as_tensor(arguments[name])):
            raise Wrong(f"it changes its argument `{name}`; work on a copy")
    wanted = [found for name in slopes if isinstance(found := arguments[name], Tensor)]
    if not slopes or not value.requires_grad:
        return Answer(value.detach(), {name: torch.zeros(()) for name in slopes})
    found = torch.autograd.grad(value.sum(), wanted, allow_unused=True)
    zero = torch.zeros(())
    return Answer(value.detach(), {name: zero if g is None else g for name, g in zip(slopes, found, strict=True)})


def _attempt(name: str, solution: Callable[..., object], case: Mapping[str, object], slopes: tuple[str, ...]) -> Answer:
    try:
        return answer(solution, case, slopes)
    except NotImplementedError:
        raise Wrong(f"{name}: there is still a hole in it; write your code there") from None
    except Wrong as found:
        raise Wrong(f"{name}: {found}") from None
    except Exception as error:
        raise Wrong(f"{name}: it raises {type(error).__name__}: {one_line(str(error))}") from error


def as_tensor(result: object) -> Tensor:
    """A number, an array or a tensor, as a tensor."""
    if result is None:
        raise Wrong("it returns nothing; end it with `return …`")
    if isinstance(result, Tensor):
        return result
    if isinstance(result, (bool, int, float, np.ndarray, np.generic)):
        return torch.as_tensor(result)
    raise Wrong(f"it returns a {type(result).__name__}; a tensor or a number was asked for")


def same(a: Answer, b: Answer) -> bool:
    return _close(a.value, b.value) and all(_close(a.slopes[name], b.slopes[name]) for name in b.slopes)


def _close(a: Tensor, b: Tensor) -> bool:
    if a.numel() == 1 and b.numel() > 1 and not bool(a):  # no gradient at all is a gradient of zero
        a = a.expand_as(b)
    if b.numel() == 1 and a.numel() > 1 and not bool(b):
        b = b.expand_as(a)
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=CLOSE, atol=CLOSE)


def difference(given: Answer, right: Answer) -> str | None:
    """Where an answer is not the right one, in words; None if it is."""
    if given.value.shape != right.value.shape:
        return f"it returns the shape {_shape(given.value)}; {_shape(right.value)} was asked for"
    if not bool(torch.isfinite(given.value.double()).all()):
        return "it returns NaN or infinity"
    if not _close(given.value, right.value):
        at, found, expected = _worst(given.value, right.value)
        return f"it returns {found:.4g}{at} where {expected:.4g} is right"
    for name, slope in right.slopes.items():
        own = given.slopes[name]
        if _close(own, slope):
            continue
        if not bool(own.any()):
            return (
                f"the value is right, but no gradient reaches `{name}`; was it detached, or computed without gradients?"
            )
        if not bool(slope.any()):
            return f"the value is right, but a gradient flows into `{name}`; it is a constant here, so detach it"
        at, found, expected = _worst(own, slope)
        return f"the value is right, but its gradient in `{name}` is {found:.4g}{at} where {expected:.4g} is right"
    return None


def _shape(x: Tensor) -> str:
    return f"[{', '.join(map(str, x.shape))}]" if x.ndim else "of a single number"


def _worst(given: Tensor, right: Tensor) -> tuple[str, float, float]:
    flat = (given.double() - right.double()).abs().flatten()
    place = int(flat.argmax())
    index = np.unravel_index(place, tuple(right.shape)) if right.ndim else ()
    at = f" at [{', '.join(str(int(i)) for i in index)}]" if index else ""
    return at, float(given.double().flatten()[place]), float(right.double().flatten()[place])


def _copy(value: object, differentiable: bool) -> object:
    if isinstance(value, Tensor):
        return value.clone().requires_grad_(differentiable)
    return value.copy() if isinstance(value, np.ndarray) else value
