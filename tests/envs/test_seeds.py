from hashlib import blake2b

from surefoot.envs.seeds import derive_seed, episode_seed


def test_a_seed_is_the_hash_of_what_it_is_for():
    raw = blake2b(b"7/episode/2/3", digest_size=8).digest()
    assert episode_seed(7, 2, 3) == derive_seed(7, "episode", 2, 3) == int.from_bytes(raw, "little") % 2**31


def test_seeds_are_equal_on_every_machine():
    assert [episode_seed(0, 0, 0), episode_seed(0, 0, 1), derive_seed(0, "vector")] == PINNED


def test_seeds_of_neighbouring_episodes_envs_and_runs_differ():
    seeds = {episode_seed(run, env, episode) for run in range(5) for env in range(20) for episode in range(50)}
    assert len(seeds) == 5 * 20 * 50


def test_a_seed_fits_a_signed_32_bit_integer():
    assert all(0 <= episode_seed(run, 0, 0) < 2**31 for run in (0, 1, -1, 2**40, 10**30))


def test_the_parts_of_a_purpose_do_not_run_together():
    assert derive_seed(1, "a", 12) != derive_seed(1, "a", 1, 2)
    assert derive_seed(1, 12) != derive_seed(11, 2)


PINNED = [1075070310, 1159502650, 771244168]
