// Gymnasium's Acrobot. classic.hpp explains the functions.
#pragma once
#include "classic_numbers.hpp"
#include "classic_params.hpp"
#include "classic_seeds.hpp"

namespace surefoot {
namespace classic {

struct Acrobot {
    using Action = std::int64_t;
    static constexpr int num_state = 4, num_obs = 6, num_actions = 3;

    // The first state is float32; `np.append` with the torque converts it to float64 at the first step.
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
            if (steps == 0) {  // the angles are float32, and so are NumPy's cosines and sines of them
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

}  // namespace classic
}  // namespace surefoot
