"""Seeds that do not depend on order: each is a hash of its purpose."""

from __future__ import annotations

from hashlib import blake2b


def derive_seed(run_seed: int, *purpose: int | str) -> int:
    """A 31-bit seed from the run's seed and a purpose, equal on every machine and Python version.

    31 bits because some environments hand it to C code that takes a signed 32-bit integer.
    """
    text = "/".join(map(str, (run_seed, *purpose)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") & 0x7FFF_FFFF


def episode_seed(run_seed: int, env_index: int, episode: int) -> int:
    """The seed of one episode of one env of a run."""
    return derive_seed(run_seed, "episode", env_index, episode)
