"""One nursery and one undisturbed run for all tests of a worker."""

import pytest

import surefoot
from tests.faults.nursery import Nursery
from tests.faults.runs import TINY


@pytest.fixture(scope="session")
def nursery():
    """Starts real processes in milliseconds."""
    found = Nursery()
    yield found
    found.close()


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """The run that nothing has happened to. Do not touch; `copy` it."""
    return surefoot.train(**TINY, run_dir=tmp_path_factory.mktemp("undisturbed") / "whole")
