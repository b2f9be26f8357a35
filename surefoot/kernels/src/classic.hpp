// Gymnasium's classic-control environments, bit for bit: the same float64 states, rewards, ends and float32
// observations for the same seeds and actions. The Python files of gymnasium/envs/classic_control are the
// specification; operations are in the same order and precision as with NumPy 2 (NEP 50).
//
// An environment kind is a struct of static functions, so that `Envs<Kind>` has the dynamics inline:
//
//     using Action                             int64_t (a choice) or float (one number)
//     num_state, num_obs, num_actions          num_actions is 0 if the action is a number
//     reset(state, random, params)             exactly env.reset(seed=...)
//     step(state, steps, action, params, reward) -> terminated      `steps`: taken before this one
//     observe(state, steps, obs)               the observation that env.step or env.reset returns
//
// `Envs<Kind>` (classic_envs.hpp) holds many of them. The C functions are in classic.cpp.
#pragma once
#include "classic_acrobot.hpp"
#include "classic_cart_pole.hpp"
#include "classic_envs.hpp"
#include "classic_mountain_car.hpp"
#include "classic_pendulum.hpp"

namespace surefoot {
namespace classic {

enum KindNumber { cart_pole = 0, pendulum = 1, acrobot = 2, mountain_car = 3, mountain_car_continuous = 4 };

template <class Kind>
struct Tag {
    using Type = Kind;
};

// Calls `use` with the `Tag` of a kind; false if there is no such kind.
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
