// Gymnasium's CartPole. classic.hpp explains the functions.
#pragma once
#include "classic_numbers.hpp"
#include "classic_params.hpp"
#include "classic_seeds.hpp"

namespace surefoot {
namespace classic {

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

}  // namespace classic
}  // namespace surefoot
