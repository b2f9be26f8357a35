"""The structures that Python and C++ share (`src/specs.hpp`, `src/rollout.hpp`, `src/stored.hpp`), for ctypes."""

from __future__ import annotations

from ctypes import CDLL, Structure, c_char_p, c_double, c_float, c_int64, c_void_p, sizeof


class LossSpec(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("surrogate", "huber", "with_kl", "with_value")),
        ("parameters", c_double * 8),  # the surrogate's
        *((name, c_double) for name in ("kl_coef", "value_coef", "value_clip", "entropy_coef")),
    )


class OptimizerSpec(Structure):
    _fields_ = (
        ("adam", c_int64),
        ("slices", c_int64),
        ("begin", c_int64 * 2),
        ("end", c_int64 * 2),
        ("rate", c_double * 2),
        ("max_grad_norm", c_double),
    )


class Batch(Structure):
    _fields_ = (
        ("size", c_int64),
        *((n, c_void_p) for n in ("x", "action", "log_prob", "params", "advantage", "target", "value", "weight")),
        ("sequences", c_int64),
        *((n, c_void_p) for n in ("start", "memory")),
    )
    arrays: tuple[object, ...]  # the arrays that it points to


class Sums(Structure):
    """Sums of a loss and its metrics; Python reads it as an array."""

    _fields_ = tuple(
        (name, c_double)
        for name in ("surrogate", "value_loss", "entropy", "kl", "approx_kl", "clipped", "weight", "ratio_error")
    )


class Inspected(Structure):
    """What a look at a whole batch finds (`src/inspect.hpp`); the first ones are sums over its samples."""

    _fields_ = tuple(
        (name, c_double)
        for name in (
            *("weight", "kl", "entropy", "before", "after", "ratio", "ratio_squared", "positive", "negative"),
            *("clipped_positive", "clipped_negative", "ratio_p5", "ratio_p50", "ratio_p95", "ratio_max"),
            *("explained_variance", "dead_units", "effective_rank"),
        )
    )


class Exchange(Structure):
    """What `epochs` needs to know of other processes; null: nothing."""

    _fields_ = (("gradient", c_void_p), ("moments", c_void_p), ("processes", c_int64), ("context", c_void_p))


class Finished(Structure):
    _fields_ = (("env", c_int64), ("length", c_int64), ("truncated", c_int64), ("ret", c_double))


class Rollout(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("steps", "envs", "numbers")),
        *((name, c_void_p) for name in ("step", "handle")),
        ("discrete", c_int64),
        *((name, c_float) for name in ("low", "high")),
        ("episodes", c_int64),
        *((name, c_void_p) for name in ("shift", "scale", "noise", "obs", "params", "action", "log_prob", "reward")),
        *((name, c_void_p) for name in ("terminated", "truncated", "valid", "ret", "length")),
        *((name, c_int64) for name in ("num_final", "num_finished")),
        *((name, c_void_p) for name in ("final_index", "final_obs", "finished", "start", "memory", "final_memory")),
    )


class Stored(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("envs", "numbers", "discrete")),
        *((name, c_void_p) for name in ("shift", "scale", "noise", "obs", "start", "memory")),
        *((name, c_void_p) for name in ("params", "action", "log_prob", "inputs", "drawn")),
    )


SHARED: tuple[type[Structure], ...] = (
    *(LossSpec, OptimizerSpec, Batch, Sums, Inspected, Exchange, Finished, Rollout, Stored),
)


def layout(kind: type[Structure]) -> str:
    """Where each field begins, how long it is, and the size of the whole: `Pair{first:0+8 second:8+8}16`."""
    fields = ((field[0], getattr(kind, field[0])) for field in kind._fields_)
    listed = " ".join(f"{name}:{found.offset}+{found.size}" for name, found in fields)
    return f"{kind.__name__}{{{listed}}}{sizeof(kind)}"


def disagreement(library: CDLL) -> str | None:
    """A description of the first structure whose layout differs between the library and Python."""
    if not hasattr(library, "sf_layout"):
        return "it does not say how its structures are laid out"
    library.sf_layout.restype, library.sf_layout.argtypes = c_char_p, []
    theirs = dict(_named(text) for text in (library.sf_layout() or b"").decode().split(";") if text)
    for kind in SHARED:
        if theirs.get(kind.__name__) != layout(kind):
            return f"{layout(kind)} in Python is {theirs.get(kind.__name__, 'missing')} in the library"
    return None


def _named(text: str) -> tuple[str, str]:
    return text.partition("{")[0], text
