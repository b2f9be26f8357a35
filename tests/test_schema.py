"""Data from a file is of its declared shape, or the message names the field."""

import math

import numpy as np
import pytest
import torch

from surefoot.schema import (
    ArrayOf,
    Either,
    Flag,
    Items,
    MapOf,
    Misfit,
    Nothing,
    Number,
    Optional,
    Record,
    Row,
    Text,
    Whole,
)

FITS = [
    (Whole(), 0),
    (Whole(), 2**53),
    (Whole(-5, 5), -5),
    (Number(), 5),
    (Number(), -0.5),
    (Number(finite=False), math.nan),
    (Flag(), False),
    (Text(), "λ"),
    (Nothing(), None),
    (Optional(Whole()), None),
    (Optional(Whole()), 3),
    (Record(a=Whole()), {"a": 1, "unknown": object()}),
    (Record(a=Optional(Whole(), later=True)), {}),
    (MapOf(Whole()), {}),
    (MapOf(Whole()), {"x": 1, "y": 2}),
    (Items(Whole()), []),
    (Items(Whole(), 2), (1, 2)),
    (Row(Whole(), Text()), [1, "a"]),
    (Either((Whole(), Text())), "a"),
    (ArrayOf((2, None), "float32"), torch.zeros(2, 7)),
    (ArrayOf((), "float64", low=0.0), np.float64(3.0)),
    (ArrayOf((0,), "float32"), torch.zeros(0)),
    (ArrayOf(None), np.zeros((2, 3), np.uint16)),
    (ArrayOf(None), torch.zeros(2, dtype=torch.uint16)),
    (ArrayOf((1,), "float32", finite=False), torch.tensor([math.nan])),
    (ArrayOf((1,), "bool"), torch.tensor([True])),
]
MISFITS = [
    (Whole(), -1, "it is -1, not a whole number"),
    (Whole(), 2**70, "not a whole number"),
    (Whole(), 10**4000, "it is a huge number"),
    (Whole(), True, "it is True"),
    (Whole(), 1.0, "it is 1.0"),
    (Number(), math.inf, "it is inf, not a finite number"),
    (Number(finite=False), 10**400, "it is a huge number"),
    (Number(low=0.0), -1.0, "from 0"),
    (Number(), "5", "it is '5'"),
    (Flag(), 1, "not true or false"),
    (Text(), 5, "not a string"),
    (Text(), "\ud800", "valid characters"),
    (Nothing(), 0, "not null"),
    (Record(a=Record(b=Whole())), {"a": {"b": None}}, r"a\.b is None"),
    (Record(a=Whole()), {}, "a is missing"),
    (Record(a=Whole()), [], "it is a list of 0, not a table"),
    (MapOf(Whole()), {"x": "y"}, "x is 'y'"),
    (Items(Whole()), {}, "it is dict, not a list"),
    (Items(Whole(), 2), [1], "a list of 2"),
    (Items(Whole(), at_least=1), [], "at least 1"),
    (Items(Items(Whole())), [[1], [2, "x"]], r"1\.1 is 'x'"),
    (Row(Whole(), Text()), [1], "a list of 2"),
    (Either((Whole(), Text())), None, "not a whole number"),
    (ArrayOf((2,), "float32"), [1.0, 2.0], "not an array"),
    (ArrayOf((2,), "float32"), torch.zeros(3), r"shape \(3,\), not 2"),
    (ArrayOf((2,), "float32"), torch.zeros(2, 1), "shape"),
    (ArrayOf((2,), "float32"), torch.zeros(2, dtype=torch.float64), "of float64, not float32"),
    (ArrayOf(None), torch.zeros(2, dtype=torch.complex64), "of complex64, not numbers"),
    (ArrayOf((2,), "float32"), torch.tensor([1.0, math.nan]), "not finite"),
    (ArrayOf((2,), "float32"), torch.tensor([1.0, -math.inf]), "not finite"),
    (ArrayOf((2,), "float32", low=0.0), torch.tensor([1.0, -1.0]), "from -1 to 1, not from 0"),
    (ArrayOf((2,), "int64", 0.0, 5.0), np.array([1, 6]), "not from 0 to 5"),
]


@pytest.mark.parametrize(("shape", "value"), FITS, ids=range(len(FITS)))
def test_what_fits_passes(shape, value):
    shape.check(value)


@pytest.mark.parametrize(("shape", "value", "message"), MISFITS, ids=range(len(MISFITS)))
def test_what_does_not_fit_is_named(shape, value, message):
    with pytest.raises(Misfit, match=message):
        shape.check(value)
