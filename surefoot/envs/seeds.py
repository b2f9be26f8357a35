"""Seeds that do not depend on order: each is a hash of what it is for."""

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


class EpisodeSeeds:
    """`episode_seed` of one run, for a log of many: the part of the hash that its envs have in common is kept."""

    def __init__(self, run_seed: int) -> None:
        self._run_seed, self._begun = run_seed, dict[int, blake2b]()

    def __call__(self, env_index: int, episode: int) -> int:
        begun = self._begun.get(env_index)
        if begun is None:
            text = f"{self._run_seed}/episode/{env_index}/"
            begun = self._begun[env_index] = blake2b(text.encode(), digest_size=8)
        whole = begun.copy()
        whole.update(b"%d" % episode)
        return int.from_bytes(whole.digest(), "little") & 0x7FFF_FFFF
