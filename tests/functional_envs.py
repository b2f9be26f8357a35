"""Functional envs in JAX, written to Brax's contract. Importing this needs JAX."""

from dataclasses import dataclass, replace

import gymnasium as gym
import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclass
class State:
    x: jax.Array
    obs: object
    reward: jax.Array
    done: jax.Array
    metrics: dict
    info: dict


class Push:
    """x moves by the action and by chance; the episode is over beyond ±2. The state holds a key of its own."""

    action_size = 1

    def __init__(self, size=0.5):
        self.size = size

    def observe(self, x, time):
        return jnp.stack([x, time])

    def reset(self, rng):
        own, first = jax.random.split(rng)
        x, zero = jax.random.uniform(first, minval=-1.0, maxval=1.0), jnp.zeros(())
        return State(x, self.observe(x, zero), zero, zero, {"height": x}, {"rng": own, "time": zero})

    def step(self, state, action):
        own, chance = jax.random.split(state.info["rng"])
        x = state.x + self.size * action[0] + 0.1 * jax.random.normal(chance)
        info = {"rng": own, "time": state.info["time"] + 1}
        done = (jnp.abs(x) > 2.0).astype(jnp.float32)
        return replace(
            state,
            x=x,
            obs=self.observe(x, info["time"]),
            reward=-jnp.abs(x),
            done=done,
            metrics={"height": x},
            info=info,
        )


class Privileged(Push):
    """Playground's form: a dict of observations, of which only the critic should see one."""

    def observe(self, x, time):
        return {"state": jnp.stack([x]), "privileged_state": jnp.stack([x, time])}


class Choices(Push):
    """With two choices, a limit of its own, and typed keys in its state."""

    action_space = gym.spaces.Discrete(2)

    def reset(self, rng):
        state = super().reset(rng)
        state.info |= {"truncation": jnp.zeros(()), "key": jax.random.wrap_key_data(state.info["rng"])}
        return state

    def step(self, state, action):
        cut, key = (state.info["time"] >= 2).astype(jnp.float32), state.info["key"]
        after = super().step(state, jnp.reshape(2.0 * action - 1.0, 1))
        after.info |= {"truncation": cut, "key": key}
        return replace(after, done=jnp.maximum(after.done, cut))


class Changing(Push):
    """Wrong: its step adds to the state."""

    def step(self, state, action):
        after = super().step(state, action)
        return replace(after, info=after.info | {"new": after.x})


class Whole(Push):
    """Wrong: its first reward is a whole number, which would round the others."""

    def reset(self, rng):
        return replace(super().reset(rng), reward=jnp.zeros((), jnp.int32))
