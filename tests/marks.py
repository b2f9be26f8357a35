"""Which of many parameters belong to the quick tests; the others run with `pytest -m slow`."""

import pytest


def quick(values, *kept):
    """All of these values; those that are not `kept` are slow tests. A value that is a tuple is several arguments."""
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=() if value in kept else pytest.mark.slow
        )
        for value in values
    ]
