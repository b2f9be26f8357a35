"""One training run of a PPO in plain JAX, for versus_peers.py, in an environment that has jax.

    python plain_jax.py PROGRAM SPEC

PROGRAM: a file whose `make(num_envs, rollout_length, epochs, minibatches, iterations)` gives a jitted function of a key
that trains CartPole and returns the mean return after each iteration. SPEC: JSON with these five and a seed. The last
line is a JSON object; one execution is timed, and compilation is reported separately.
"""

from __future__ import annotations

import json
import sys
from importlib import util
from time import perf_counter
from typing import Any

BEGUN = perf_counter()


def main(program: str, spec: dict[str, Any]) -> dict[str, Any]:
    import jax

    found = util.spec_from_file_location("program", program)
    assert found is not None
    assert found.loader is not None
    module = util.module_from_spec(found)
    found.loader.exec_module(module)
    imported = perf_counter()
    shape = [spec[name] for name in ("num_envs", "rollout_length", "epochs", "minibatches", "iterations")]
    train = module.make(*shape).lower(jax.random.key(0)).compile()
    compiled = perf_counter()
    returns = train(jax.random.key(spec["seed"]))
    returns.block_until_ready()
    seconds = perf_counter() - compiled
    steps = spec["num_envs"] * spec["rollout_length"] * spec["iterations"]
    return {
        "total_steps": steps,
        "seconds": seconds,
        "steps_per_second": steps / seconds,
        "import_seconds": imported - BEGUN,
        "setup_seconds": 0.0,
        "compile_seconds": compiled - imported,
        "train_return": float(returns[-1]),
        "versions": {"jax": jax.__version__},
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
