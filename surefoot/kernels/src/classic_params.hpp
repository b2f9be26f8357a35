// The keyword arguments of the environments' constructors.
#pragma once

namespace surefoot {
namespace classic {

struct Params {
    double g = 10.0;                   // Pendulum
    double goal_velocity = 0.0;        // MountainCar, MountainCarContinuous
    bool sutton_barto_reward = false;  // CartPole
};

}  // namespace classic
}  // namespace surefoot
