from dataclasses import FrozenInstanceError, dataclass
from typing import Any, Literal

import pytest

from surefoot.errors import UsageError, did_you_mean
from surefoot.settings import Settings, coerce, options, setting, unwrap_optional


@dataclass(frozen=True, kw_only=True)
class Part(Settings):
    """A part."""

    gamma: float = setting(0.99, "Discount.", low=0.0, high=1.0)
    steps: int = setting(10, "Steps.", low=1)


@dataclass(frozen=True, kw_only=True)
class Whole(Part):
    """The whole."""

    steps: int = 20
    rate: float = setting(3e-4, "Rate.", above=0.0)
    sizes: tuple[int, ...] = setting((64, 64), "Sizes.", low=1)
    names: tuple[str, ...] = setting((), "Names.")
    limit: float | None = setting(None, "Limit.", low=0.0)
    more: tuple[int, ...] | None = setting(None, "More.")
    on: bool = setting(False, "Switch.")
    kind: Literal["clip", "tanh"] = setting("clip", "Kind.")
    table: dict[str, Any] = setting({}, "Table.")
    text: str = setting("", "Text.", flag=False)


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("100k", 100_000),
        ("1M", 1_000_000),
        ("2G", 2_000_000_000),
        ("1.5k", 1500),
        ("100_000", 100_000),
        ("1e5", 100_000),
        (" 42 ", 42),
        (5.0, 5),
        (7, 7),
        ("+3", 3),
    ],
)
def test_whole_numbers_in_the_forms_that_people_write(written, number):
    value = Whole(steps=written).steps
    assert value == number
    assert type(value) is int


@pytest.mark.parametrize(
    ("written", "number"), [("3e-4", 3e-4), ("0.5", 0.5), (".5", 0.5), ("1k", 1000.0), (1, 1.0), ("1E-3", 1e-3)]
)
def test_real_numbers_in_the_forms_that_people_write(written, number):
    value = Whole(rate=written).rate
    assert value == number
    assert type(value) is float


@pytest.mark.parametrize("written", ["4.1M", "2.01M", "1.001k"])
def test_a_whole_number_with_a_fraction_before_its_suffix(written):
    digits = float(written[:-1])
    assert Whole(steps=written).steps == round(digits * {"k": 1_000, "M": 1_000_000}[written[-1]])


def test_a_large_whole_number_is_not_rounded():
    assert Whole(steps="9007199254740993").steps == 9007199254740993


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("steps", "many", "steps='many' is not a whole number.*100k"),
        ("steps", "1.5", "steps='1.5' is not a whole number"),
        ("steps", 2.5, "steps=2.5 is not a whole number"),
        ("steps", "inf", "steps='inf' is not a whole number"),
        ("steps", True, "steps=True is not a whole number"),
        ("steps", None, "steps=None is not a whole number"),
        ("steps", "1__0..0", "steps"),
        ("steps", "100 k m", "steps"),
        ("steps", "", "steps"),
        ("steps", "-", "steps"),
        ("rate", "fast", "rate='fast' is not a number.*3e-4"),
        ("rate", [1.0], "rate"),
        ("rate", "nan", "rate is NaN"),
        ("rate", float("nan"), "rate is NaN"),
        ("steps", 0, "steps=0 is too small; it must be at least 1"),
        ("gamma", 1.5, "gamma=1.5 is too large; it must be at most 1"),
        ("gamma", -0.1, "gamma=-0.1 is too small; it must be at least 0"),
        ("rate", 0, "rate=0.0 is too small; it must be greater than 0"),
        ("limit", -1, "limit=-1.0 is too small"),
        ("sizes", (64, 0), r"sizes=\(64, 0\) is too small"),
        ("sizes", "64,x", "sizes='x' is not a whole number"),
        ("on", "maybe", "on='maybe' is not true or false"),
        ("on", 1, "on=1 is not true or false"),
        ("kind", "tahn", "kind='tahn' is not one of: clip, tanh; did you mean 'tanh'"),
        ("kind", None, "kind=None is not one of"),
        ("table", "{g: 1}", "table='{g: 1}' is not JSON.*\"key\": 1"),
        ("table", "[1]", "table.*is not a table"),
        ("table", 5, "table=5 is not a table"),
        ("text", 5, "text=5 is not a string"),
        ("names", (5,), "names=5 is not a string"),
    ],
)
def test_a_wrong_value_names_its_key_and_the_fix(key, value, words):
    with pytest.raises(UsageError, match=words):
        Whole(**{key: value})


@pytest.mark.parametrize(("key", "value"), [("gamma", 0), ("gamma", 1), ("steps", 1), ("rate", 1e-30), ("limit", 0)])
def test_the_bounds_themselves_are_allowed(key, value):
    assert getattr(Whole(**{key: value}), key) == value


@pytest.mark.parametrize(
    "written", [(64, 32), [64, 32], ["64", "32"], "64,32", "64 32", "64, 32", ["64,32"], [64.0, "32"]]
)
def test_tuples_of_numbers(written):
    assert Whole(sizes=written).sizes == (64, 32)


@pytest.mark.parametrize("written", [[], ()])
def test_an_empty_tuple(written):
    assert Whole(sizes=written).sizes == ()


def test_one_number_is_a_tuple_of_one():
    assert Whole(sizes=64).sizes == Whole(sizes="64").sizes == (64,)


def test_texts_are_never_split():
    assert Whole(names='TimeLimit{"a": 1, "b": 2}').names == ('TimeLimit{"a": 1, "b": 2}',)
    assert Whole(names=["a b", "c,d"]).names == ("a b", "c,d")


@pytest.mark.parametrize("written", [None, "none"])
def test_optional_settings_take_none(written):
    assert Whole(limit=written).limit is None


def test_optional_tuples_take_none_as_a_flag_gives_it():
    assert Whole(more=["none"]).more is None
    assert Whole(more=["1", "2"]).more == (1, 2)


def test_a_setting_that_is_not_optional_refuses_none():
    with pytest.raises(UsageError, match="gamma='none'"):
        Whole(gamma="none")


@pytest.mark.parametrize(
    ("written", "value"), [("true", True), ("No", False), ("ON", True), ("off", False), (True, True)]
)
def test_switches(written, value):
    assert Whole(on=written).on is value


def test_tables_from_json_and_from_python():
    assert Whole(table='{"g": 9.81, "deep": {"a": [1]}}').table == {"g": 9.81, "deep": {"a": [1]}}
    given = {"g": 1}
    config = Whole(table=given)
    given["g"] = 2
    assert config.table == {"g": 1}


def test_a_default_table_is_not_shared():
    next(o for o in options(Whole) if o.name == "table").default["y"] = 1
    first = Whole()
    first.table["x"] = 1
    assert Whole().table == {}


def test_a_config_is_frozen_and_takes_keywords_only():
    with pytest.raises(FrozenInstanceError):
        Whole().steps = 3
    with pytest.raises(TypeError):
        Whole(0.9)


def test_a_subclass_that_changes_a_default_keeps_help_bounds_and_owner():
    option = {o.name: o for o in options(Whole)}["steps"]
    assert (option.default, option.help, option.low, option.owner) == (20, "Steps.", 1, Part)
    with pytest.raises(UsageError, match="at least 1"):
        Whole(steps=0)
    assert Whole().steps == 20
    assert Part().steps == 10


def test_own_settings_come_before_inherited_ones():
    owners = [o.owner for o in options(Whole)]
    assert owners == [Whole] * 9 + [Part] * 2


def test_options_know_type_and_flag():
    found = {o.name: o for o in options(Whole)}
    assert found["limit"].type == (float | None)
    assert found["sizes"].default == (64, 64)
    assert found["table"].default == {}
    assert not found["text"].flag
    assert found["rate"].flag


def test_as_dict_holds_the_coerced_values():
    assert Whole(steps="1k").as_dict() == {
        "gamma": 0.99,
        "steps": 1000,
        "rate": 3e-4,
        "sizes": (64, 64),
        "names": (),
        "limit": None,
        "more": None,
        "on": False,
        "kind": "clip",
        "table": {},
        "text": "",
    }


def test_as_dict_makes_an_equal_config():
    config = Whole(steps=7, sizes="8 8", limit=3, table={"a": 1})
    assert Whole(**config.as_dict()) == config


@pytest.mark.parametrize(
    ("hint", "expected"),
    [(int, (int, False)), (int | None, (int, True)), (int | str, (int | str, False)), (None | float, (float, True))],
)
def test_unwrap_optional(hint, expected):
    assert unwrap_optional(hint) == expected


def test_coerce_of_a_lone_value():
    assert coerce("episodes", "1k", int) == 1000
    assert coerce("max_steps", "none", int | None) is None


@pytest.mark.parametrize(("given", "found"), [("auto", "auto"), ("2k", 2000), (3, 3), (4.0, 4)])
def test_a_word_or_a_number(given, found):
    assert coerce("workers", given, int | Literal["auto"]) == found


@pytest.mark.parametrize("given", ["Auto", "none", None, 1.5, True, ["auto"]])
def test_neither_the_word_nor_a_number(given):
    with pytest.raises(UsageError, match=r"workers=.* is neither a whole number nor auto"):
        coerce("workers", given, int | Literal["auto"])


def test_did_you_mean_ignores_case_and_keeps_quiet_when_nothing_is_near():
    assert did_you_mean("GAMA", ["gamma", "steps"]) == "; did you mean 'gamma'?"
    assert did_you_mean("zzz", ["gamma", "steps"]) == ""


@pytest.mark.parametrize("digits", [400, 5000])
def test_an_integer_of_hundreds_of_digits_is_an_error(digits):
    for kind in (float, int):
        with pytest.raises(UsageError, match="gamma is a number of more digits"):
            coerce("gamma", 10**digits, kind)
