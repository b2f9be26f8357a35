"""Real processes, started by torchrun, learn what one process learns: all algorithms, through both kinds of exchange.

`tests/engine/test_shares.py` has the same with threads, for many more settings.
"""

import sys
from pathlib import Path

import pytest
import torch

from surefoot.algorithms import ALGORITHMS
from surefoot.engine.group import joined
from tests.engine.test_shares import settings_of
from tests.together import trained
from tests.training.test_ranks import finished, start

ENVS = ("CartPole-v1", "Pendulum-v1")
EXCHANGES = ("shared memory", "gloo")
SEEN = ("obs", "action", "dist_params")
pytestmark = pytest.mark.slow


def work(folder):
    """In each process: the first rollout and the weights after an update, for every algorithm."""
    found = {}
    with joined() as group:
        for exchange in EXCHANGES:
            if exchange == "gloo":
                group._nearby = None  # as on several machines
            for case in ((env, algo) for env in ENVS for algo in ALGORITHMS):
                trainer, recorder = trained(*case, settings_of(case[1], "native"), group)
                found[exchange, *case] = {**recorder.first, "weights": trainer.learner.flat.vector.clone()}
            if group.size == 1:
                break
        torch.save(found, Path(folder) / f"{group.size}-{group.index}.pt")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each process of each world size has found."""
    folder = tmp_path_factory.mktemp("ranks")
    found = {}
    for size in (1, 2, 4):
        words = ["torch.distributed.run", "--standalone", f"--nproc-per-node={size}", "-m", __name__, str(folder)]
        finished(start(*words, PYTHONPATH=str(Path(__file__).parents[2])))
        found[size] = [torch.load(folder / f"{size}-{index}.pt") for index in range(size)]
    return found


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("algo", list(ALGORITHMS))
def test_the_same_rollout_and_the_same_weights(results, size, exchange, env, algo):
    (alone,) = (each[EXCHANGES[0], env, algo] for each in results[1])
    found = [each[exchange, env, algo] for each in results[size]]
    for name in SEEN:
        steps = min(len(each[name]) for each in found)  # whole episodes differ in length
        whole = torch.cat([each[name][:steps] for each in found], 1)
        assert torch.equal(whole, alone[name][:steps]), name
    assert all(torch.equal(each["weights"], found[0]["weights"]) for each in found)
    close = 5e-5 if algo in ("npg", "trpo") else 2e-6  # conjugate gradients magnify what sums in another order round
    torch.testing.assert_close(found[0]["weights"], alone["weights"], rtol=0.0, atol=close)


if __name__ == "__main__":
    work(sys.argv[1])
