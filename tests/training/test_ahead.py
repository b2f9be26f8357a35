"""What a run does beside its iterations: who has to hear of each, and what waits for the host to have time."""

from types import SimpleNamespace

import pytest

import surefoot
from surefoot.runs import RunDirectory
from surefoot.training.loop.ahead import hears_of_several
from surefoot.training.reports.loggers import OnlyOriginal
from surefoot.training.reports.trackers import TrackerLog
from surefoot.training.trainer import Trainer


class Each(surefoot.Callback):
    def on_update(self, trainer, metrics):
        pass


def test_only_a_callback_that_wants_each_update_is_told_of_each(tmp_path):
    ours = [OnlyOriginal(), TrackerLog("wandb", RunDirectory(tmp_path)), surefoot.Callback()]
    assert all(map(hears_of_several, ours))
    assert not hears_of_several(Each())


def test_what_waits_behind_an_errand_that_fails_is_not_lost():
    done = []

    def fail():
        raise OSError("no")

    trainer = SimpleNamespace(errands=[lambda: done.append(1), fail, lambda: done.append(2)])
    with pytest.raises(OSError, match="no"):
        Trainer.run_errands(trainer)
    Trainer.run_errands(trainer)
    assert done == [1, 2]
