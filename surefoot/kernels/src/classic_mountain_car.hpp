// Gymnasium's MountainCar and MountainCarContinuous. classic.hpp explains the functions.
#pragma once
#include "classic_numbers.hpp"
#include "classic_params.hpp"
#include "classic_seeds.hpp"

namespace surefoot {
namespace classic {

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
        const double size = static_cast<double>(action);  // its square is exact, so any pow returns it
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
        // Within its bounds the force is a float32, and so is everything computed from it. Beyond them it is the bound,
        // a Python float, which is rounded when combined with the state.
        if (action > 1.0f)
            velocity += static_cast<Real>(1.0 * 0.0015 - slope);
        else if (action < -1.0f)
            velocity += static_cast<Real>(-1.0 * 0.0015 - slope);
        else
            velocity += static_cast<Real>(action * 0.0015f - round_to_float32(slope));
        // At full speed the velocity is the bound, again a Python float, and is compared as such.
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

}  // namespace classic
}  // namespace surefoot
