// Seeds of episodes (BLAKE2b, as in surefoot/envs/seeds.py) and NumPy's random generator (PCG64).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "classic_numbers.hpp"

namespace surefoot {
namespace classic {

// BLAKE2b (RFC 7693), unkeyed, with a digest of eight bytes.
class Blake2b {
public:
    Blake2b() {
        for (int i = 0; i < 8; ++i) hash_[i] = initial(i);
        hash_[0] ^= 0x01010000u ^ 8u;  // depth and fan-out 1, no key, eight bytes
    }

    void update(const char* text, std::size_t length) {
        while (length > 0) {
            if (filled_ == sizeof block_) {  // only if more follows: the last block is marked
                count_ += sizeof block_;
                compress(false);
                filled_ = 0;
            }
            const std::size_t part = length < sizeof block_ - filled_ ? length : sizeof block_ - filled_;
            std::memcpy(block_ + filled_, text, part);
            filled_ += part;
            text += part;
            length -= part;
        }
    }

    // The digest as a little-endian number.
    std::uint64_t finish() {
        std::memset(block_ + filled_, 0, sizeof block_ - filled_);
        count_ += filled_;
        compress(true);
        return hash_[0];
    }

private:
    static std::uint64_t initial(int i) {
        static constexpr std::uint64_t table[8] = {
            0x6a09e667f3bcc908u, 0xbb67ae8584caa73bu, 0x3c6ef372fe94f82bu, 0xa54ff53a5f1d36f1u,
            0x510e527fade682d1u, 0x9b05688c2b3e6c1fu, 0x1f83d9abfb41bd6bu, 0x5be0cd19137e2179u};
        return table[i];
    }

    static std::uint64_t rotate_right(std::uint64_t x, int bits) { return (x >> bits) | (x << (64 - bits)); }

    void compress(bool last) {
        static constexpr unsigned char order[10][16] = {
            {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
            {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
            {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
            {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
            {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};
        std::uint64_t words[16], v[16];
        for (int i = 0; i < 16; ++i) {
            words[i] = 0;
            for (int byte = 7; byte >= 0; --byte) words[i] = words[i] << 8 | block_[8 * i + byte];
        }
        for (int i = 0; i < 8; ++i) v[i] = hash_[i], v[i + 8] = initial(i);
        v[12] ^= count_;
        if (last) v[14] = ~v[14];
        const auto mix = [&v](int a, int b, int c, int d, std::uint64_t x, std::uint64_t y) {
            v[a] += v[b] + x;
            v[d] = rotate_right(v[d] ^ v[a], 32);
            v[c] += v[d];
            v[b] = rotate_right(v[b] ^ v[c], 24);
            v[a] += v[b] + y;
            v[d] = rotate_right(v[d] ^ v[a], 16);
            v[c] += v[d];
            v[b] = rotate_right(v[b] ^ v[c], 63);
        };
        for (int round = 0; round < 12; ++round) {
            const unsigned char* s = order[round % 10];
            for (int i = 0; i < 4; ++i)  // columns
                mix(i, i + 4, i + 8, i + 12, words[s[2 * i]], words[s[2 * i + 1]]);
            for (int i = 0; i < 4; ++i)  // diagonals
                mix(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, words[s[2 * i + 8]], words[s[2 * i + 9]]);
        }
        for (int i = 0; i < 8; ++i) hash_[i] ^= v[i] ^ v[i + 8];
    }

    std::uint64_t hash_[8];
    std::uint64_t count_ = 0;  // bytes hashed; never reaches 2^64
    unsigned char block_[128];
    std::size_t filled_ = 0;
};

// `episode_seed` of surefoot/envs/seeds.py. The run's seed is decimal text, because Python's integers are unbounded.
inline std::uint32_t episode_seed(const std::string& run_seed, std::int64_t env_index, std::int64_t episode) {
    char rest[64];
    const int length = std::snprintf(rest, sizeof rest, "/episode/%lld/%lld", static_cast<long long>(env_index),
                                     static_cast<long long>(episode));
    Blake2b hash;
    hash.update(run_seed.data(), run_seed.size());
    hash.update(rest, static_cast<std::size_t>(length));
    return static_cast<std::uint32_t>(hash.finish() & 0x7fffffffu);
}

// NumPy's Generator(PCG64(SeedSequence(seed))) for seeds below 2^64: random() and uniform() of float64.
class Random {
public:
    explicit Random(std::uint64_t seed) {
        std::uint32_t pool[4];
        mix_entropy(seed, pool);
        std::uint64_t words[4];
        std::uint32_t multiplier = 0x8b51f9ddu;
        for (int i = 0; i < 8; ++i) {
            std::uint32_t word = pool[i % 4] ^ multiplier;
            multiplier *= 0x58f38dedu;
            word *= multiplier;
            word ^= word >> 16;
            if (i % 2 == 0)
                words[i / 2] = word;
            else
                words[i / 2] |= static_cast<std::uint64_t>(word) << 32;
        }
        increment_ = (wide(words[2], words[3]) << 1) | 1u;
        state_ = increment_ + wide(words[0], words[1]);  // one step from 0, then the seed
        advance();
    }

    std::uint64_t next() {  // PCG XSL-RR 128/64
        advance();
        const std::uint64_t folded = static_cast<std::uint64_t>(state_ >> 64) ^ static_cast<std::uint64_t>(state_);
        const unsigned turn = static_cast<unsigned>(state_ >> 122);
        return (folded >> turn) | (folded << ((64u - turn) & 63u));
    }

    double random() { return static_cast<double>(next() >> 11) * (1.0 / 9007199254740992.0); }

    double uniform(double low, double high) { return low + (high - low) * random(); }

private:
    __extension__ typedef unsigned __int128 Wide;

    static Wide wide(std::uint64_t high, std::uint64_t low) { return static_cast<Wide>(high) << 64 | low; }

    void advance() { state_ = state_ * wide(2549297995355413924u, 4865540595714422341u) + increment_; }

    static void mix_entropy(std::uint64_t seed, std::uint32_t (&pool)[4]) {
        std::uint32_t multiplier = 0x43b0d7e5u;
        const auto scramble = [&multiplier](std::uint32_t word) {
            word ^= multiplier;
            multiplier *= 0x931e8875u;
            word *= multiplier;
            return word ^ (word >> 16);
        };
        pool[0] = scramble(static_cast<std::uint32_t>(seed));
        pool[1] = scramble(static_cast<std::uint32_t>(seed >> 32));
        pool[2] = scramble(0);
        pool[3] = scramble(0);
        for (int from = 0; from < 4; ++from)
            for (int to = 0; to < 4; ++to)
                if (from != to) {
                    const std::uint32_t word = 0xca01f9ddu * pool[to] - 0x4973f715u * scramble(pool[from]);
                    pool[to] = word ^ (word >> 16);
                }
    }

    Wide state_, increment_;
};

}  // namespace classic
}  // namespace surefoot
