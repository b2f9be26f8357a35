// The C functions of the native classic-control environments; surefoot/kernels/classic.py declares them to Python.
// `kind` numbers are those of `KindNumber`. Nothing is allocated within a step, unless an episode is longer than
// usual and its list of actions grows.
#include "classic.hpp"

#include "entry.hpp"

namespace classic = surefoot::classic;
using surefoot::guarded;

#ifndef SUREFOOT_SOURCES
#define SUREFOOT_SOURCES ""
#endif

static classic::AnyEnvs& opened(void* envs) { return *static_cast<classic::AnyEnvs*>(envs); }
static void require_known(bool kind) {
    if (!kind) throw std::invalid_argument("there is no such kind of env");
}

extern "C" {

// The hash of the sources, passed by setup.py.
EXPORT const char* surefoot_sources() { return SUREFOOT_SOURCES; }

// The message of this thread's last call that FAILED.
EXPORT const char* surefoot_error() { return surefoot::last_error; }

// `run_seed`: decimal text. `first`: the index of the first env in the whole run. `time_limit` 0: none.
EXPORT int surefoot_classic_create(int kind, std::int64_t num_envs, const char* run_seed, std::int64_t first, double g,
                                   double goal_velocity, int sutton_barto_reward, std::int64_t time_limit, std::int64_t longest_replay,
                                   void** made) {
    return guarded([&] {
        classic::Setup setup;
        setup.num_envs = num_envs;
        setup.run_seed = run_seed;
        setup.first = first;
        setup.params.g = g;
        setup.params.goal_velocity = goal_velocity;
        setup.params.sutton_barto_reward = sutton_barto_reward != 0;
        setup.time_limit = time_limit;
        setup.longest_replay = longest_replay;
        require_known(classic::with_kind(kind, [&](auto tag) {
            using Made = classic::Envs<typename decltype(tag)::Type>;
            *made = static_cast<classic::AnyEnvs*>(new Made(setup));
        }));
    });
}

EXPORT int surefoot_classic_destroy(void* envs) {
    return guarded([&] { delete &opened(envs); });
}

// state, observation, choices (0: the action is one float)
EXPORT int surefoot_classic_sizes(int kind, std::int64_t* sizes) {
    return guarded([&] {
        require_known(classic::with_kind(kind, [&](auto tag) {
            using Kind = typename decltype(tag)::Type;
            sizes[0] = Kind::num_state;
            sizes[1] = Kind::num_obs;
            sizes[2] = Kind::num_actions;
        }));
    });
}

// Resets every env to the start of its next episode; obs [num_envs, num_obs].
EXPORT int surefoot_classic_reset(void* envs, float* obs) {
    return guarded([&] { opened(envs).reset(obs); });
}

// Resets one env to an episode with this seed; obs [num_obs]. The next episode uses its own seed again.
EXPORT int surefoot_classic_begin(void* envs, std::int64_t env, std::int64_t episode, std::uint64_t seed, float* obs) {
    return guarded([&] { opened(envs).begin_seeded(env, episode, seed, obs); });
}

// action: int64 or float [num_envs]; active: NULL or [num_envs], 0 leaves an env as it is. Rows of final_obs are written
// where an episode ended. `ended`: how many did; -1 - env if that env failed.
EXPORT int surefoot_classic_step(void* envs, const void* action, const std::uint8_t* active, float* obs, double* reward,
                                 std::uint8_t* terminated, std::uint8_t* truncated, float* final_obs,
                                 std::int64_t* ended) {
    return guarded([&] {
        *ended = opened(envs).step(action, active, obs, reward, terminated, truncated, final_obs);
    });
}

// Number and steps of the open episodes, each [num_envs].
EXPORT int surefoot_classic_where(void* envs, std::int64_t* episode, std::int64_t* steps) {
    return guarded([&] {
        const classic::AnyEnvs& own = opened(envs);
        std::memcpy(episode, own.episode.data(), own.episode.size() * sizeof(std::int64_t));
        std::memcpy(steps, own.steps.data(), own.steps.size() * sizeof(std::int64_t));
    });
}

EXPORT int surefoot_classic_num_remembered(void* envs, std::int64_t env, std::int64_t* count) {
    return guarded([&] { *count = opened(envs).num_remembered(env); });
}

// The actions of an env's open episode, as many as `num_remembered` says.
EXPORT int surefoot_classic_remembered(void* envs, std::int64_t env, void* action) {
    return guarded([&] { opened(envs).remembered(env, action); });
}

// Brings an env to the state of `episode` after these actions, obs [num_obs]; `came` 0: the episode ends before.
EXPORT int surefoot_classic_replay(void* envs, std::int64_t env, std::int64_t episode, const void* action,
                                   std::int64_t count, float* obs, int* came) {
    return guarded([&] { *came = opened(envs).replay(env, episode, action, count, obs); });
}

EXPORT int surefoot_classic_get_state(void* envs, std::int64_t env, double* state) {
    return guarded([&] { opened(envs).get_state(env, state); });
}

EXPORT int surefoot_classic_set_state(void* envs, std::int64_t env, std::int64_t episode, std::int64_t steps,
                                      const double* state, float* obs) {
    return guarded([&] { opened(envs).set_state(env, episode, steps, state, obs); });
}

EXPORT int surefoot_classic_episode_seed(const char* run_seed, std::int64_t env, std::int64_t episode,
                                         std::uint32_t* seed) {
    return guarded([&] { *seed = classic::episode_seed(run_seed, env, episode); });
}

// The first `count` numbers of NumPy's default_rng(seed).random().
EXPORT int surefoot_classic_random(std::uint64_t seed, double* out, std::int64_t count) {
    return guarded([&] {
        classic::Random random(seed);
        for (std::int64_t i = 0; i < count; ++i) out[i] = random.random();
    });
}

// The functions that the dynamics take from libm and NumPy, to be compared with NumPy's on this machine:
// 0 sin, 1 cos, 2 x**2, 3 remainder by 2π; of float32 numbers (given as doubles): 4 sin, 5 cos, 6 x**2.
EXPORT int surefoot_classic_function(int which, const double* x, double* y, std::int64_t count) {
    return guarded([&] {
        for (std::int64_t i = 0; i < count; ++i) {
            const float narrow = static_cast<float>(x[i]);
            switch (which) {
                case 0: y[i] = std::sin(x[i]); break;
                case 1: y[i] = std::cos(x[i]); break;
                case 2: y[i] = classic::power_of_two(x[i]); break;
                case 3: y[i] = classic::modulo(x[i], 2 * classic::pi); break;
                case 4: y[i] = static_cast<double>(classic::sin_float32(narrow)); break;
                case 5: y[i] = static_cast<double>(classic::cos_float32(narrow)); break;
                case 6: y[i] = static_cast<double>(classic::power_of_two(narrow)); break;
                default: throw std::invalid_argument("there is no such function");
            }
        }
    });
}

}  // extern "C"
