"""The only way into the compiled libraries: every function returns whether it worked, and here that is an exception."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import CDLL, c_char_p, c_int
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from ctypes import _CData

Signatures: TypeAlias = "Mapping[str, Sequence[type[_CData]]]"  # what each function takes
OK, NO_MEMORY, FAILED = range(3)  # `Status` in src/entry.hpp


class Library:
    """The functions that `signatures` name (without `prefix`) with what they take. Nothing else can be called."""

    def __init__(self, library: CDLL, prefix: str, signatures: Signatures) -> None:
        self._library = library  # which must stay loaded
        self._error = library["surefoot_error"]
        self._error.restype = c_char_p
        for name, arguments in signatures.items():
            function: Any = library[prefix + name]
            function.argtypes, function.restype, function.errcheck = arguments, c_int, self._check
            setattr(self, name, function)

    def _check(self, status: int, function: Any, _arguments: Any) -> None:
        if status == OK:
            return
        name = function.__name__
        if status == NO_MEMORY:
            raise MemoryError(f"no memory for the native kernels ({name})")
        raise RuntimeError(f"the native kernels failed in {name}: {self._error().decode(errors='replace')}")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name} is not declared: its signature is missing")
