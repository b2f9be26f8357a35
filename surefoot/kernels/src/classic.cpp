// The C functions of the native classic-control environments; surefoot/kernels/classic.py declares them to Python.
// `kind` numbers are those of `KindNumber`. Nothing is allocated within a step, except where an episode is longer than
// usual and its remembered actions grow.
#include "classic.hpp"

#include <climits>

namespace classic = surefoot::classic;

#ifndef SUREFOOT_SOURCES
#define SUREFOOT_SOURCES ""
#endif

extern "C" {

// What it was built from; setup.py says it.
const char* surefoot_sources() { return SUREFOOT_SOURCES; }

// NULL where there is no such kind or no memory. `run_seed`: decimal text. `time_limit` 0: none.
void* surefoot_classic_create(int kind, std::int64_t num_envs, const char* run_seed, double g, double goal_velocity,
                              int sutton_barto_reward, std::int64_t time_limit, std::int64_t longest_replay) {
    void* made = nullptr;
    try {
        classic::Setup setup;
        setup.num_envs = num_envs;
        setup.run_seed = run_seed;
        setup.params.g = g;
        setup.params.goal_velocity = goal_velocity;
        setup.params.sutton_barto_reward = sutton_barto_reward != 0;
        setup.time_limit = time_limit;
        setup.longest_replay = longest_replay;
        classic::with_kind(kind, [&](auto tag) {
            using Made = classic::Envs<typename decltype(tag)::Type>;
            made = static_cast<classic::AnyEnvs*>(new Made(setup));
        });
    } catch (...) {
        return nullptr;
    }
    return made;
}

void surefoot_classic_destroy(void* envs) { delete static_cast<classic::AnyEnvs*>(envs); }

// state, observation, choices (0: the action is one float)
int surefoot_classic_sizes(int kind, std::int64_t* sizes) {
    return classic::with_kind(kind, [&](auto tag) {
        using Kind = typename decltype(tag)::Type;
        sizes[0] = Kind::num_state;
        sizes[1] = Kind::num_obs;
        sizes[2] = Kind::num_actions;
    });
}

// Every env to the start of its next episode; obs [num_envs, num_obs].
void surefoot_classic_reset(void* envs, float* obs) { static_cast<classic::AnyEnvs*>(envs)->reset(obs); }

// One env to the start of an episode with this seed; obs [num_obs]. The next one's seed is its own again.
void surefoot_classic_begin(void* envs, std::int64_t env, std::int64_t episode, std::uint64_t seed, float* obs) {
    static_cast<classic::AnyEnvs*>(envs)->begin_seeded(env, episode, seed, obs);
}

// action: int64 or float [num_envs]; active: NULL or [num_envs], 0 leaves an env as it is. Rows of final_obs are written
// where an episode ended. Returns how many did; -1 - env for a fault of that env; INT64_MIN where there is no memory.
std::int64_t surefoot_classic_step(void* envs, const void* action, const std::uint8_t* active, float* obs,
                                   double* reward, std::uint8_t* terminated, std::uint8_t* truncated,
                                   float* final_obs) {
    try {
        return static_cast<classic::AnyEnvs*>(envs)->step(action, active, obs, reward, terminated, truncated, final_obs);
    } catch (...) {
        return INT64_MIN;
    }
}

// Number and steps of the open episodes, each [num_envs].
void surefoot_classic_where(const void* envs, std::int64_t* episode, std::int64_t* steps) {
    const auto* all = static_cast<const classic::AnyEnvs*>(envs);
    std::memcpy(episode, all->episode.data(), all->episode.size() * sizeof(std::int64_t));
    std::memcpy(steps, all->steps.data(), all->steps.size() * sizeof(std::int64_t));
}

std::int64_t surefoot_classic_num_remembered(const void* envs, std::int64_t env) {
    return static_cast<const classic::AnyEnvs*>(envs)->num_remembered(env);
}

// The actions of an env's open episode, as many as `num_remembered` says.
void surefoot_classic_remembered(const void* envs, std::int64_t env, void* action) {
    static_cast<const classic::AnyEnvs*>(envs)->remembered(env, action);
}

// An env to where `episode` stood after these actions, obs [num_obs]; 0 where they do not lead there.
int surefoot_classic_replay(void* envs, std::int64_t env, std::int64_t episode, const void* action, std::int64_t count,
                            float* obs) {
    try {
        return static_cast<classic::AnyEnvs*>(envs)->replay(env, episode, action, count, obs);
    } catch (...) {
        return 0;
    }
}

void surefoot_classic_get_state(const void* envs, std::int64_t env, double* state) {
    static_cast<const classic::AnyEnvs*>(envs)->get_state(env, state);
}

void surefoot_classic_set_state(void* envs, std::int64_t env, std::int64_t episode, std::int64_t steps,
                                const double* state, float* obs) {
    static_cast<classic::AnyEnvs*>(envs)->set_state(env, episode, steps, state, obs);
}

std::uint32_t surefoot_classic_episode_seed(const char* run_seed, std::int64_t env, std::int64_t episode) {
    return classic::episode_seed(run_seed, env, episode);
}

// The first `count` numbers of NumPy's default_rng(seed).random().
void surefoot_classic_random(std::uint64_t seed, double* out, std::int64_t count) {
    classic::Random random(seed);
    for (std::int64_t i = 0; i < count; ++i) out[i] = random.random();
}

// The functions that the dynamics take from libm and NumPy, to be compared with NumPy's on this machine:
// 0 sin, 1 cos, 2 x**2, 3 remainder by 2π; of float32 numbers (given as doubles): 4 sin, 5 cos, 6 x**2.
int surefoot_classic_function(int which, const double* x, double* y, std::int64_t count) {
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
            default: return 0;
        }
    }
    return 1;
}

}  // extern "C"
