"""Returns and lengths of whole episodes."""

import json
from dataclasses import asdict

import numpy as np

from surefoot.engine.episodes import Episode, EpisodeColumns, EpisodeTracker, returns_of, rows_of
from surefoot.types import Step


def step(reward, valid, ended=(), info=None):
    flags = np.array([i in ended for i in range(len(reward))])
    finals = {i: np.zeros(1) for i in ended}
    return Step(
        np.zeros((len(reward), 1)),
        np.array(reward, float),
        flags,
        ~flags & False,
        np.array(valid),
        finals,
        {i: info or {} for i in ended},
    )


def test_invalid_steps_add_neither_reward_nor_length():
    tracker = EpisodeTracker(2)
    tracker.add(step([1.0, 1.0], [True, True]))
    tracker.add(step([50.0, 1.0], [False, True]))
    tracker.add(step([2.0, 1.0], [True, True], ended=(0, 1)))
    assert [(e.env, e.ret, e.length) for e in tracker.take()] == [(0, 3.0, 2), (1, 3.0, 3)]


def test_an_end_on_an_invalid_step_is_no_episode():
    tracker = EpisodeTracker(1)
    tracker.add(step([1.0], [False], ended=(0,)))
    assert tracker.take() == []


def test_episodes_are_handed_out_once():
    tracker = EpisodeTracker(1, ["score"])
    tracker.add(step([1.0], [True], ended=(0,), info={"score": np.float32(7), "other": "text"}))
    assert [e.info for e in tracker.take()] == [{"score": 7.0}]
    assert tracker.take() == []


def test_a_cut_drops_open_episodes_unless_they_are_whole():
    tracker = EpisodeTracker(2)
    tracker.add(step([1.0, 2.0], [True, True]))
    tracker.cut(np.array([False, True]))
    assert [(e.env, e.ret) for e in tracker.take()] == [(1, 2.0)]
    tracker.add(step([5.0, 5.0], [True, True], ended=(0, 1)))
    assert [e.ret for e in tracker.take()] == [5.0, 5.0]


def test_what_ended_an_episode_is_kept():
    tracker = EpisodeTracker(3)
    both = step([1.0, 1.0, 1.0], [True, True, True], ended=(0, 1))
    both.terminated, both.truncated = np.array([True, False, False]), np.array([True, True, False])
    tracker.add(both)
    tracker.cut(np.array([False, False, True]))  # by the end of the rollout
    assert [(e.env, e.truncated) for e in tracker.take()] == [(0, False), (1, True), (2, True)]


def test_an_episode_is_plain_data_even_if_numpy_counts_the_envs():
    """Several processes tell each other of their episodes as JSON."""
    tracker = EpisodeTracker(2)
    tracker.length[1] = 3
    tracker.finish(np.flatnonzero([False, True])[0])
    (episode,) = tracker.take()
    assert json.loads(json.dumps(asdict(episode))) == asdict(episode)


def columns(*rows):
    env, ret, length, cut = zip(*rows, strict=True)
    return EpisodeColumns(np.array(env), np.array(ret, float), np.array(length), np.array(cut))


def test_columns_are_a_sequence_of_plain_episodes():
    found = columns((3, 1.5, 7, True), (0, 2.5, 9, False), (3, 0.5, 2, False))
    expected = [Episode(3, 1.5, 7, {}, True), Episode(0, 2.5, 9), Episode(3, 0.5, 2)]
    assert list(found) == expected
    assert [found[at] for at in range(3)] == expected
    assert (len(found), found[-1], list(found[1:])) == (3, expected[-1], expected[1:])
    assert json.loads(json.dumps([asdict(episode) for episode in found])) == [asdict(each) for each in expected]
    assert list(rows_of(found)) == list(rows_of(expected)) == [(3, 1.5, 7), (0, 2.5, 9), (3, 0.5, 2)]
    assert returns_of(found) == returns_of(expected)


def test_columns_come_before_episodes_that_end_later():
    tracker = EpisodeTracker(4)
    tracker.finish_many(columns((3, 1.0, 1, False), (3, 2.0, 1, False)), np.zeros(4), np.zeros(4))
    assert [e.ret for e in tracker.take()] == [1.0, 2.0]
    assert not tracker.take()
    tracker.finish_many(columns((3, 1.0, 1, False), (3, 2.0, 1, False)), np.zeros(4), np.full(4, 5.0))
    tracker.cut(np.array([True, False, False, True]))
    tracker.keep_first()
    assert [(e.env, e.ret) for e in tracker.take()] == [(3, 1.0), (0, 0.0)]
