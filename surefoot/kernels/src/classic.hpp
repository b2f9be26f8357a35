// Gymnasium's classic-control environments, bit for bit: the same float64 states, rewards, ends and float32
// observations for the same seeds and actions. The Python files of gymnasium/envs/classic_control are the
// specification; every operation here stands in their order, in the precision that NumPy 2 gives it (NEP 50).
//
// Of the compiler: no contraction of multiply-adds (the pragmas below; -ffp-contract=off besides), no fast-math, and
// an `x ** 2` of NumPy's is libm's pow, which is not x*x (they differ once in about a thousand).
//
// An environment kind is a struct of static functions, so that a rollout loop made for a kind has its dynamics inline:
//
//     using Action                             int64_t (a choice) or float (one number)
//     num_state, num_obs, num_actions          num_actions is 0 where the action is a number
//     reset(state, random, params)             exactly env.reset(seed=...)
//     step(state, steps, action, params, reward) -> terminated      `steps`: taken before this one
//     observe(state, steps, obs)               as env.step or env.reset returns it
//
// `Envs<Kind>` holds many of them with a seed for every episode, ends them, begins the next and remembers their
// actions. `with_kind` hands the `Tag` of a kind to a generic lambda. The C functions are in classic.cpp.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#if defined(__FAST_MATH__)
#error "the environments must be bit-equal to Gymnasium's: compile without -ffast-math"
#endif
static_assert(FLT_EVAL_METHOD == 0, "float and double must be computed as such (on 32-bit x86: -msse2 -mfpmath=sse)");

#if defined(__clang__)
#pragma clang fp contract(off)
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#endif

namespace surefoot {
namespace classic {

// ---------------------------------------------------------------------------------------------------- numbers

constexpr double pi = 3.141592653589793;

// `x ** 2` of a NumPy scalar. The exponent is volatile because a compiler makes x*x of a pow with a known 2.
inline double power_of_two(double x) {
    static volatile double two = 2.0;
    return std::pow(x, two);
}

inline float power_of_two(float x) {
    static volatile float two = 2.0f;
    return std::pow(x, two);
}

// A double rounded to float32, wherever more is computed from it. Through memory, because the vectoriser of GCC 12 drops
// the rounding from a double → float → double for AVX2.
inline float round_to_float32(double x) {
    volatile float narrow = static_cast<float>(x);
    return narrow;
}

// `x % y` of NumPy floats for y > 0: the result has the sign of y.
inline double modulo(double x, double y) {
    const double rest = std::fmod(x, y);
    if (rest == 0.0) return 0.0;
    return rest < 0.0 ? rest + y : rest;
}

// np.clip; a NaN stays one.
template <class Real>
inline Real clip(Real x, Real low, Real high) {
    return x < low ? low : (x > high ? high : x);
}

// np.sin and np.cos of a float32 with |x| <= π/4: NumPy computes them with polynomials of its own and fused
// multiply-adds (where the machine has none, with libm; then the check before use will say that they differ).
inline float sin_float32(float x) {
    const float x2 = x * x;
    float r = std::fma(0x1.7d3bbcp-19f, x2, -0x1.a06bbap-13f);
    r = std::fma(r, x2, 0x1.11119ap-7f);
    r = std::fma(r, x2, -0x1.555556p-3f);
    return std::fma(r * x2, x, x);
}

inline float cos_float32(float x) {
    const float x2 = x * x;
    float r = std::fma(0x1.98e616p-16f, x2, -0x1.6c06dcp-10f);
    r = std::fma(r, x2, 0x1.55553cp-5f);
    r = std::fma(r, x2, -0.5f);
    return std::fma(r, x2, 1.0f);
}

// ------------------------------------------------------------------------------------------------------ seeds

// BLAKE2b (RFC 7693), unkeyed, with a digest of eight bytes.
class Blake2b {
public:
    Blake2b() {
        for (int i = 0; i < 8; ++i) hash_[i] = initial(i);
        hash_[0] ^= 0x01010000u ^ 8u;  // depth and fan-out 1, no key, eight bytes
    }

    void update(const char* text, std::size_t length) {
        while (length > 0) {
            if (filled_ == sizeof block_) {  // only when more follows: the last block is marked as such
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
    std::uint64_t count_ = 0;  // bytes hashed; texts of 2^64 bytes do not occur
    unsigned char block_[128];
    std::size_t filled_ = 0;
};

// `episode_seed` of surefoot/envs/seeds.py. The run's seed comes as decimal text: Python's integers have no end.
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

// --------------------------------------------------------------------------------------------------- dynamics

// The constructors' keyword arguments.
struct Params {
    double g = 10.0;                   // Pendulum
    double goal_velocity = 0.0;        // MountainCar, MountainCarContinuous
    bool sutton_barto_reward = false;  // CartPole
};

struct CartPole {
    using Action = std::int64_t;
    static constexpr int num_state = 4, num_obs = 4, num_actions = 2;

    static void reset(double* state, Random& random, const Params&) {
        for (int i = 0; i < 4; ++i) state[i] = random.uniform(-0.05, 0.05);
    }

    static bool step(double* state, std::int64_t, Action action, const Params& params, double& reward) {
        constexpr double gravity = 9.8, pole_mass = 0.1, total_mass = 0.1 + 1.0, length = 0.5;
        constexpr double pole_mass_length = pole_mass * length, tau = 0.02;
        constexpr double angle_limit = 12 * 2 * pi / 360, position_limit = 2.4;
        const double x = state[0], x_dot = state[1], theta = state[2], theta_dot = state[3];
        const double force = action == 1 ? 10.0 : -10.0;
        const double cosine = std::cos(theta), sine = std::sin(theta);
        const double temp = (force + pole_mass_length * (theta_dot * theta_dot) * sine) / total_mass;
        const double theta_acc = (gravity * sine - cosine * temp) /
                                 (length * (4.0 / 3.0 - pole_mass * (cosine * cosine) / total_mass));
        const double x_acc = temp - pole_mass_length * theta_acc * cosine / total_mass;
        state[0] = x + tau * x_dot;
        state[1] = x_dot + tau * x_acc;
        state[2] = theta + tau * theta_dot;
        state[3] = theta_dot + tau * theta_acc;
        const bool terminated = state[0] < -position_limit || state[0] > position_limit || state[2] < -angle_limit ||
                                state[2] > angle_limit;
        reward = params.sutton_barto_reward ? (terminated ? -1.0 : 0.0) : 1.0;
        return terminated;
    }

    static void observe(const double* state, std::int64_t, float* obs) {
        for (int i = 0; i < 4; ++i) obs[i] = static_cast<float>(state[i]);
    }
};

struct Pendulum {
    using Action = float;
    static constexpr int num_state = 2, num_obs = 3, num_actions = 0;

    static void reset(double* state, Random& random, const Params&) {
        state[0] = random.uniform(-pi, pi);
        state[1] = random.uniform(-1.0, 1.0);
    }

    static bool step(double* state, std::int64_t, Action action, const Params& params, double& reward) {
        const double theta = state[0], theta_dot = state[1];
        const float u = clip(action, -2.0f, 2.0f);
        const double angle = modulo(theta + pi, 2 * pi) - pi;
        // 0.001 * u**2 and 3.0 * u are float32: a Python float takes the type of a NumPy scalar.
        const float effort = 0.001f * power_of_two(u);
        const double cost = power_of_two(angle) + 0.1 * power_of_two(theta_dot) + static_cast<double>(effort);
        const double pull = 3.0 * params.g / 2.0 * std::sin(theta) + static_cast<double>(3.0f * u);
        state[1] = clip(theta_dot + pull * 0.05, -8.0, 8.0);
        state[0] = theta + state[1] * 0.05;
        reward = -cost;
        return false;
    }

    static void observe(const double* state, std::int64_t, float* obs) {
        obs[0] = static_cast<float>(std::cos(state[0]));
        obs[1] = static_cast<float>(std::sin(state[0]));
        obs[2] = static_cast<float>(state[1]);
    }
};

struct Acrobot {
    using Action = std::int64_t;
    static constexpr int num_state = 4, num_obs = 6, num_actions = 3;

    // The first state is float32; `np.append` with the torque makes float64 of it at the first step.
    static void reset(double* state, Random& random, const Params&) {
        for (int i = 0; i < 4; ++i) state[i] = static_cast<double>(round_to_float32(random.uniform(-0.1, 0.1)));
    }

    static bool step(double* state, std::int64_t, Action action, const Params&, double& reward) {
        constexpr double dt = 0.2, half = dt / 2.0, max_speed_1 = 4 * pi, max_speed_2 = 9 * pi;
        const double torque = static_cast<double>(action - 1);
        double k1[4], k2[4], k3[4], k4[4], at[4];
        derivatives(state, torque, k1);
        for (int i = 0; i < 4; ++i) at[i] = state[i] + half * k1[i];
        derivatives(at, torque, k2);
        for (int i = 0; i < 4; ++i) at[i] = state[i] + half * k2[i];
        derivatives(at, torque, k3);
        for (int i = 0; i < 4; ++i) at[i] = state[i] + dt * k3[i];
        derivatives(at, torque, k4);
        for (int i = 0; i < 4; ++i) state[i] += dt / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i]);
        state[0] = wrap(state[0]);
        state[1] = wrap(state[1]);
        state[2] = clip(state[2], -max_speed_1, max_speed_1);
        state[3] = clip(state[3], -max_speed_2, max_speed_2);
        const bool terminated = -std::cos(state[0]) - std::cos(state[1] + state[0]) > 1.0;
        reward = terminated ? 0.0 : -1.0;
        return terminated;
    }

    static void observe(const double* state, std::int64_t steps, float* obs) {
        for (int i = 0; i < 2; ++i) {
            if (steps == 0) {  // the angles are float32, and so NumPy's cosines and sines of them
                obs[2 * i] = cos_float32(static_cast<float>(state[i]));
                obs[2 * i + 1] = sin_float32(static_cast<float>(state[i]));
            } else {
                obs[2 * i] = static_cast<float>(std::cos(state[i]));
                obs[2 * i + 1] = static_cast<float>(std::sin(state[i]));
            }
            obs[4 + i] = static_cast<float>(state[2 + i]);
        }
    }

private:
    static double wrap(double x) {
        while (x > pi) x -= pi - -pi;
        while (x < -pi) x += pi - -pi;
        return x;
    }

    // The book's equations; both links of mass 1, length 1, moment of inertia 1, centre of mass in the middle.
    static void derivatives(const double* s, double torque, double* out) {
        constexpr double g = 9.8, upper_pull = 1.5 * g, lower_pull = 0.5 * g;
        const double theta1 = s[0], theta2 = s[1], dtheta1 = s[2], dtheta2 = s[3];
        const double cos2 = std::cos(theta2), sin2 = std::sin(theta2);
        const double d1 = 0.25 + (1.25 + cos2) + 1.0 + 1.0;
        const double d2 = 0.25 + 0.5 * cos2 + 1.0;
        const double phi2 = lower_pull * std::cos(theta1 + theta2 - pi / 2.0);
        const double phi1 = -0.5 * power_of_two(dtheta2) * sin2 - dtheta2 * dtheta1 * sin2 +
                            upper_pull * std::cos(theta1 - pi / 2.0) + phi2;
        const double ddtheta2 = (torque + d2 / d1 * phi1 - 0.5 * power_of_two(dtheta1) * sin2 - phi2) /
                                (1.25 - power_of_two(d2) / d1);
        out[0] = dtheta1;
        out[1] = dtheta2;
        out[2] = -(d2 * ddtheta2 + phi1) / d1;
        out[3] = ddtheta2;
    }
};

struct MountainCar {
    using Action = std::int64_t;
    static constexpr int num_state = 2, num_obs = 2, num_actions = 3;

    static void reset(double* state, Random& random, const Params&) {
        state[0] = random.uniform(-0.6, -0.4);
        state[1] = 0.0;
    }

    static bool step(double* state, std::int64_t, Action action, const Params& params, double& reward) {
        double position = state[0], velocity = state[1];
        velocity += static_cast<double>(action - 1) * 0.001 + std::cos(3.0 * position) * -0.0025;
        velocity = clip(velocity, -0.07, 0.07);
        position = clip(position + velocity, -1.2, 0.6);
        if (position == -1.2 && velocity < 0.0) velocity = 0.0;
        state[0] = position;
        state[1] = velocity;
        reward = -1.0;
        return position >= 0.5 && velocity >= params.goal_velocity;
    }

    static void observe(const double* state, std::int64_t, float* obs) {
        obs[0] = static_cast<float>(state[0]);
        obs[1] = static_cast<float>(state[1]);
    }
};

struct MountainCarContinuous {
    using Action = float;
    static constexpr int num_state = 2, num_obs = 2, num_actions = 0;

    static void reset(double* state, Random& random, const Params&) {
        state[0] = random.uniform(-0.6, -0.4);
        state[1] = 0.0;
    }

    // The state is float64 after a reset and float32 after a step.
    static bool step(double* state, std::int64_t steps, Action action, const Params& params, double& reward) {
        const bool terminated = steps == 0 ? move<double>(state, action, params) : move<float>(state, action, params);
        const double size = static_cast<double>(action);  // its square is exact, so that any pow would return it
        reward = (terminated ? 100.0 : 0.0) - size * size * 0.1;
        return terminated;
    }

    static void observe(const double* state, std::int64_t, float* obs) {
        obs[0] = static_cast<float>(state[0]);
        obs[1] = static_cast<float>(state[1]);
    }

private:
    template <class Real>
    static bool move(double* state, float action, const Params& params) {
        Real position = static_cast<Real>(state[0]), velocity = static_cast<Real>(state[1]);
        const double slope = 0.0025 * std::cos(static_cast<double>(Real(3) * position));
        // Within its bounds the force is a float32, and so all that is computed from it; beyond them it is the bound,
        // a Python float. Python floats are rounded where they meet the state.
        if (action > 1.0f)
            velocity += static_cast<Real>(1.0 * 0.0015 - slope);
        else if (action < -1.0f)
            velocity += static_cast<Real>(-1.0 * 0.0015 - slope);
        else
            velocity += static_cast<Real>(action * 0.0015f - round_to_float32(slope));
        // At full speed the velocity is the bound, a Python float again, and compared as such.
        const Real fastest = Real(0.07);
        bool fast_enough = velocity >= static_cast<Real>(params.goal_velocity);
        if (velocity > fastest) {
            velocity = fastest;
            fast_enough = 0.07 >= params.goal_velocity;
        }
        if (velocity < -fastest) {
            velocity = -fastest;
            fast_enough = -0.07 >= params.goal_velocity;
        }
        position = clip(position + velocity, Real(-1.2), Real(0.6));
        if (position == Real(-1.2) && velocity < Real(0)) velocity = Real(0);
        state[0] = static_cast<double>(round_to_float32(static_cast<double>(position)));
        state[1] = static_cast<double>(round_to_float32(static_cast<double>(velocity)));
        return position >= Real(0.45) && fast_enough;
    }
};

// ------------------------------------------------------------------------------------------------------- many

struct Outcome {
    double reward;
    bool terminated, truncated;
    bool ok;  // false: not a legal action (the env was not stepped), or a reward or observation that is not finite
};

struct Setup {
    std::int64_t num_envs = 1;
    std::string run_seed;  // decimal text
    Params params;
    std::int64_t time_limit = 0;      // 0: none
    std::int64_t longest_replay = 0;  // actions of an open episode that are remembered
};

// What does not depend on the kind.
class AnyEnvs {
public:
    explicit AnyEnvs(Setup given)
        : setup(std::move(given)),
          episode(static_cast<std::size_t>(setup.num_envs), -1),
          steps(static_cast<std::size_t>(setup.num_envs), 0) {}
    virtual ~AnyEnvs() = default;
    AnyEnvs(const AnyEnvs&) = delete;
    AnyEnvs& operator=(const AnyEnvs&) = delete;

    virtual void reset(float* obs) = 0;
    virtual void begin_seeded(std::int64_t env, std::int64_t episode, std::uint64_t seed, float* obs) = 0;
    virtual std::int64_t step(const void* action, const std::uint8_t* active, float* obs, double* reward,
                              std::uint8_t* terminated, std::uint8_t* truncated, float* final_obs) = 0;
    virtual std::int64_t num_remembered(std::int64_t env) const = 0;
    virtual void remembered(std::int64_t env, void* action) const = 0;
    virtual bool replay(std::int64_t env, std::int64_t episode, const void* action, std::int64_t count, float* obs) = 0;
    virtual void get_state(std::int64_t env, double* state) const = 0;
    virtual void set_state(std::int64_t env, std::int64_t episode, std::int64_t steps, const double* state,
                           float* obs) = 0;

    const Setup setup;
    std::vector<std::int64_t> episode;  // number of each env's open episode; -1 before the first
    std::vector<std::int64_t> steps;    // taken in it
};

template <class Kind>
class Envs final : public AnyEnvs {
public:
    using Action = typename Kind::Action;
    static constexpr bool discrete = Kind::num_actions > 0;
    static_assert(Kind::num_actions < 128, "a remembered choice is one byte");

    explicit Envs(Setup given)
        : AnyEnvs(std::move(given)),
          state_(static_cast<std::size_t>(setup.num_envs) * Kind::num_state),
          actions_(static_cast<std::size_t>(setup.num_envs)) {
        const std::int64_t usual = 1024;  // a longer episode's memory grows as it goes on
        const bool shorter = setup.time_limit > 0 && setup.time_limit < usual;
        for (auto& own : actions_) own.reserve(static_cast<std::size_t>(shorter ? setup.time_limit : usual));
    }

    double* state(std::int64_t env) { return state_.data() + env * Kind::num_state; }
    const double* state(std::int64_t env) const { return state_.data() + env * Kind::num_state; }

    void observe(std::int64_t env, float* obs) const {
        Kind::observe(state(env), steps[static_cast<std::size_t>(env)], obs);
    }

    // The first state of an episode.
    void begin(std::int64_t env, std::int64_t number) {
        begin_with(env, number, episode_seed(setup.run_seed, env, number));
    }

    // The same of an episode whose seed is somebody else's.
    void begin_with(std::int64_t env, std::int64_t number, std::uint64_t seed) {
        const auto i = static_cast<std::size_t>(env);
        episode[i] = number;
        steps[i] = 0;
        actions_[i].clear();
        Random random(seed);
        Kind::reset(state(env), random, setup.params);
    }

    void begin_seeded(std::int64_t env, std::int64_t number, std::uint64_t seed, float* obs) override {
        begin_with(env, number, seed);
        observe(env, obs);
    }

    // One step without what follows an end; `obs` is what it led to.
    Outcome step_within(std::int64_t env, Action action, float* obs) {
        if (discrete && !(action >= 0 && action < Kind::num_actions)) return {0.0, false, false, false};
        const auto i = static_cast<std::size_t>(env);
        Outcome outcome{};
        outcome.terminated = Kind::step(state(env), steps[i], action, setup.params, outcome.reward);
        if (steps[i]++ < setup.longest_replay) actions_[i].push_back(static_cast<Stored>(action));
        outcome.truncated = setup.time_limit > 0 && steps[i] >= setup.time_limit;
        observe(env, obs);
        double sum = outcome.reward;  // not finite where a part is not; finite parts are far too small to overflow
        for (int j = 0; j < Kind::num_obs; ++j) sum += static_cast<double>(obs[j]);
        outcome.ok = std::isfinite(sum);
        return outcome;
    }

    // One step. Where it ended an episode, `final_obs` is its last observation and `obs` the next one's first.
    Outcome step_one(std::int64_t env, Action action, float* obs, float* final_obs) {
        const Outcome outcome = step_within(env, action, obs);
        if (outcome.ok && (outcome.terminated || outcome.truncated)) {
            std::memcpy(final_obs, obs, Kind::num_obs * sizeof(float));
            begin(env, episode[static_cast<std::size_t>(env)] + 1);
            observe(env, obs);
        }
        return outcome;
    }

    void reset(float* obs) override {
        for (std::int64_t env = 0; env < setup.num_envs; ++env) {
            begin(env, episode[static_cast<std::size_t>(env)] + 1);
            observe(env, obs + env * Kind::num_obs);
        }
    }

    // How many episodes ended; -1 - env where the step of that env is not ok (those after it are not stepped).
    std::int64_t step(const void* action, const std::uint8_t* active, float* obs, double* reward,
                      std::uint8_t* terminated, std::uint8_t* truncated, float* final_obs) override {
        const Action* actions = static_cast<const Action*>(action);
        std::int64_t ended = 0;
        for (std::int64_t env = 0; env < setup.num_envs; ++env) {
            if (active != nullptr && !active[env]) {
                reward[env] = 0.0;
                terminated[env] = truncated[env] = 0;
                continue;
            }
            const Outcome outcome =
                step_one(env, actions[env], obs + env * Kind::num_obs, final_obs + env * Kind::num_obs);
            reward[env] = outcome.reward;
            terminated[env] = outcome.terminated;
            truncated[env] = outcome.truncated;
            if (!outcome.ok) return -1 - env;
            ended += outcome.terminated || outcome.truncated;
        }
        return ended;
    }

    std::int64_t num_remembered(std::int64_t env) const override {
        return static_cast<std::int64_t>(actions_[static_cast<std::size_t>(env)].size());
    }

    void remembered(std::int64_t env, void* action) const override {
        Action* out = static_cast<Action*>(action);
        for (const Stored own : actions_[static_cast<std::size_t>(env)]) *out++ = static_cast<Action>(own);
    }

    // Bring an env to where `episode` stood after these actions; false where they do not lead there.
    bool replay(std::int64_t env, std::int64_t number, const void* action, std::int64_t count, float* obs) override {
        const Action* actions = static_cast<const Action*>(action);
        begin(env, number);
        observe(env, obs);
        for (std::int64_t i = 0; i < count; ++i) {
            const Outcome outcome = step_within(env, actions[i], obs);
            if (!outcome.ok || outcome.terminated || outcome.truncated) return false;
        }
        return true;
    }

    void get_state(std::int64_t env, double* out) const override {
        std::memcpy(out, state(env), Kind::num_state * sizeof(double));
    }

    // The actions that led there are not known, so that it cannot be saved as a replay.
    void set_state(std::int64_t env, std::int64_t number, std::int64_t count, const double* from,
                   float* obs) override {
        const auto i = static_cast<std::size_t>(env);
        episode[i] = number;
        steps[i] = count;
        actions_[i].clear();
        std::memcpy(state(env), from, Kind::num_state * sizeof(double));
        observe(env, obs);
    }

private:
    template <bool choice, class None = void>
    struct Storage {
        using Type = float;
    };
    template <class None>
    struct Storage<true, None> {
        using Type = std::int8_t;
    };
    using Stored = typename Storage<discrete>::Type;

    std::vector<double> state_;                 // [num_envs, num_state]
    std::vector<std::vector<Stored>> actions_;  // of the open episodes: with their seeds, their whole state
};

enum KindNumber { cart_pole = 0, pendulum = 1, acrobot = 2, mountain_car = 3, mountain_car_continuous = 4 };

template <class Kind>
struct Tag {
    using Type = Kind;
};

// Calls `use` with the `Tag` of a kind; false where there is no such kind.
template <class Use>
inline bool with_kind(int kind, Use&& use) {
    switch (kind) {
        case cart_pole: use(Tag<CartPole>()); return true;
        case pendulum: use(Tag<Pendulum>()); return true;
        case acrobot: use(Tag<Acrobot>()); return true;
        case mountain_car: use(Tag<MountainCar>()); return true;
        case mountain_car_continuous: use(Tag<MountainCarContinuous>()); return true;
        default: return false;
    }
}

}  // namespace classic
}  // namespace surefoot

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif
