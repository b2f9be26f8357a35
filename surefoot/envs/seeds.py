"""Seeds that do not depend on order: each is a hash of its purpose."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from struct import unpack


def derive_seed(run_seed: int, *purpose: int | str) -> int:
    """A 31-bit seed from the run's seed and a purpose, equal on every machine and Python version.

    31 bits because some environments pass it to C code that takes a signed 32-bit integer.
    """
    text = "/".join(map(str, (run_seed, *purpose)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") & 0x7FFF_FFFF


def episode_seed(run_seed: int, env_index: int, episode: int) -> int:
    """The seed of one episode of one env of a run."""
    return derive_seed(run_seed, "episode", env_index, episode)


class EpisodeSeeds:
    """`episode_seed` for many episodes of one run; caches the part of the hash that depends only on the env.

    `first`: the index of env 0 in the whole run, if other processes have the envs before it.
    """

    def __init__(self, run_seed: int, first: int = 0) -> None:
        self._run_seed, self._first, self._begun = run_seed, first, dict[int, blake2b]()

    def of(self, envs: Sequence[int], numbers: Sequence[int]) -> list[int]:
        """The seeds of episodes, given their envs and numbers."""
        begun, digests = self._begun, []
        for env in set(envs) - begun.keys():
            begun[env] = blake2b(f"{self._run_seed}/episode/{self._first + env}/".encode(), digest_size=8)
        for env, number in zip(envs, numbers, strict=True):
            whole = begun[env].copy()
            whole.update(b"%d" % number)
            digests.append(whole.digest())
        return [seed & 0x7FFF_FFFF for seed in unpack(f"<{len(digests)}Q", b"".join(digests))]
