// Many environments of one kind: seeds for every episode, automatic resets, and actions kept for a replay.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "classic_params.hpp"
#include "classic_seeds.hpp"

namespace surefoot {
namespace classic {

struct Outcome {
    double reward;
    bool terminated, truncated;
    bool ok;  // false: not a legal action (the env was not stepped), or a reward or observation that is not finite
};

struct Setup {
    std::int64_t num_envs = 1;
    std::string run_seed;  // decimal text
    std::int64_t first = 0;  // the index of the first env in the whole run, for the seeds
    Params params;
    std::int64_t time_limit = 0;      // 0: none
    std::int64_t longest_replay = 0;  // at most this many actions of an open episode are kept
};

// The part that does not depend on the kind.
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
        const std::int64_t usual = 1024;  // longer episodes grow their buffer
        const bool shorter = setup.time_limit > 0 && setup.time_limit < usual;
        for (auto& own : actions_) own.reserve(static_cast<std::size_t>(shorter ? setup.time_limit : usual));
    }

    double* state(std::int64_t env) { return state_.data() + env * Kind::num_state; }
    const double* state(std::int64_t env) const { return state_.data() + env * Kind::num_state; }

    void observe(std::int64_t env, float* obs) const {
        Kind::observe(state(env), steps[static_cast<std::size_t>(env)], obs);
    }

    // Resets to the first state of an episode.
    void begin(std::int64_t env, std::int64_t number) {
        begin_with(env, number, episode_seed(setup.run_seed, setup.first + env, number));
    }

    // The same for an episode with a seed given by the caller.
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

    // One step without a reset; `obs` is the resulting observation.
    Outcome step_within(std::int64_t env, Action action, float* obs) {
        if (discrete && !(action >= 0 && action < Kind::num_actions)) return {0.0, false, false, false};
        const auto i = static_cast<std::size_t>(env);
        Outcome outcome{};
        outcome.terminated = Kind::step(state(env), steps[i], action, setup.params, outcome.reward);
        if (steps[i]++ < setup.longest_replay) actions_[i].push_back(static_cast<Stored>(action));
        outcome.truncated = setup.time_limit > 0 && steps[i] >= setup.time_limit;
        observe(env, obs);
        double sum = outcome.reward;  // not finite if any term is not; finite terms are far too small to overflow
        for (int j = 0; j < Kind::num_obs; ++j) sum += static_cast<double>(obs[j]);
        outcome.ok = std::isfinite(sum);
        return outcome;
    }

    // One step. If it ends an episode, `final_obs` is the last observation and `obs` the first of the next episode.
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

    // Returns how many episodes ended, or -1 - env if the step of that env failed (those after it are not stepped).
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

    // Brings an env to the state of `episode` after these actions; false if the episode ends before.
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

    // The actions that led to this state are not known, so it cannot be saved as a replay.
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
    std::vector<std::vector<Stored>> actions_;  // of the open episodes; with the seeds, they determine the state
};

}  // namespace classic
}  // namespace surefoot
