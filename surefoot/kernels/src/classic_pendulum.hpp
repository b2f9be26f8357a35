// Gymnasium's Pendulum. classic.hpp explains the functions.
#pragma once
#include "classic_numbers.hpp"
#include "classic_params.hpp"
#include "classic_seeds.hpp"

namespace surefoot {
namespace classic {

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

}  // namespace classic
}  // namespace surefoot
