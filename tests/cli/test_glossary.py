"""`surefoot explain` explains every word that a user meets: of the field, settings, metrics, other libraries."""

import math

import pytest

from surefoot.analysis.columns import COLUMNS
from surefoot.analysis.instruments import INSTRUMENTS
from surefoot.cli import glossary
from surefoot.cli.explain import explain, known_words
from surefoot.cli.main import COMMANDS, main
from surefoot.errors import UsageError
from surefoot.training.config.other_libraries import ELSEWHERE
from surefoot.training.config.resolve import all_options


def test_no_two_entries_share_a_name():
    names = [name for word in glossary.WORDS for name in (word.name, *word.also)]
    assert len(names) == len(set(names))


def test_the_glossary_answers_the_fifteen_questions_of_the_homework():
    answers = {number: word for word in glossary.WORDS for number in word.answers}
    assert sorted(answers) == list(range(1, 16))
    said = {number: f"{word.meaning} {word.formula}" for number, word in answers.items()}
    for part in ("states", "actions", "transition", "rewards"):
        assert part in said[1]
    assert f"{math.log(0.5):.4f}".replace("-", "−") in said[10]
    assert "exp(log A − log B)" in said[11]
    assert "log_prob(action" in said[14]
    for number, words in {
        2: "only on the current state",
        3: "Σ_{t≥0} γ^t",
        4: "gradient of the expected return with respect to the policy's parameters",
        6: "∇_θ log π_θ",
        7: "no bias",
        8: "no replay buffer",
        9: "probability",
        12: "before the softmax",
        13: "discrete",
        15: "angular velocity",
    }.items():
        assert words in said[number]


@pytest.mark.parametrize("word", ["gae", "kl", "clip_ratio", "advantage"])
def test_words_are_explained_with_their_formula(word, capsys):
    assert main(["explain", word]) == 0
    assert glossary.BY_NAME[word].formula.splitlines()[0] in capsys.readouterr().out


@pytest.mark.parametrize("typed", ["clip_ratio", "--clip-ratio", "Clip Ratio", "clip-ratio"])
def test_a_word_may_be_spelled_as_it_was_met(typed):
    told = explain(typed)
    assert "setting clip_ratio" in told
    assert "default: 0.2 (ppo)" in told
    assert "flag: --clip-ratio" in told


def test_a_word_of_two_words_needs_no_quotes(capsys):
    assert main(["explain", "trust", "region"]) == 0
    assert "surefoot theory bound" in capsys.readouterr().out


def test_every_setting_metric_and_word_is_explained():
    words = [*all_options("ppo"), *COLUMNS, *(one.name for one in INSTRUMENTS), *glossary.BY_NAME, *ELSEWHERE]
    for word in words:
        assert explain(word)
    assert set(words) - set(ELSEWHERE) <= set(known_words())


def test_a_name_of_another_library_leads_to_ours():
    told = explain("ent_coef")
    assert "here it is entropy_coef" in told
    assert "setting entropy_coef" in told


def test_an_unknown_word_gets_a_suggestion():
    with pytest.raises(UsageError, match="did you mean 'advantage'"):
        explain("advntage")
    with pytest.raises(UsageError, match="did you mean 'gae'"):
        explain("gea")


def test_commands_that_an_entry_points_to_exist():
    for word in glossary.WORDS:
        for command in word.see:
            assert command.split()[0] == "surefoot"
            assert command.split()[1] in COMMANDS
