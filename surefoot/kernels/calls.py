"""The only way to call the compiled libraries. Their functions return a status, which becomes an exception here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import CDLL, c_char_p, c_int
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from ctypes import _CData

Signatures: TypeAlias = "Mapping[str, Sequence[type[_CData]]]"  # argument types of each function
OK, NO_MEMORY, FAILED = range(3)  # `Status` in src/entry.hpp


class Library:
    """The functions in `signatures` (named without `prefix`), with their argument types. No others can be called."""

    def __init__(self, library: CDLL, prefix: str, signatures: Signatures) -> None:
        self._library = library  # keeps it loaded
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
