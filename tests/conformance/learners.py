"""Small learners in NumPy, right and with one mistake each. A process that checks them needs no PyTorch."""

import numpy as np

from surefoot.conformance import child, tasks


def table_of(make, states, *, steps, gamma, seed, future="final", fake=False, **_):
    """V of the states by TD(0) with a table, which ends at the fixed point. `future`: the mistake at a truncation."""
    value, env = np.zeros(len(states)), make()
    seen, _ = env.reset(seed=seed)
    first = int(seen.argmax())
    for step in range(steps):
        rate = max(0.5 / (1 + step / 100), 0.01)
        here = int(seen.argmax())
        seen, reward, terminated, truncated, _ = env.step(0)
        after = int(seen.argmax())
        if truncated and not terminated:
            after = {"final": after, "last": here, "reset": first, "none": None}[future]
        elif terminated:
            after = after if future == "past" else None
        value[here] += rate * (reward + (0.0 if after is None else gamma * value[after]) - value[here])
        if terminated or truncated:
            if fake:
                final = int(seen.argmax())
                value[final] += rate * (gamma * value[first] - value[final])
            seen, _ = env.reset()
    return value


def with_mistake(**mistake):
    """An adapter's functions around `table_of`."""

    def values(make_env, states, **options):
        return table_of(make_env, states, **options, **{**mistake, "fake": False})

    def vector_values(make_envs, states, **options):
        return table_of(make_envs().env_fns[0], states, **options, **mistake)

    return {"values": values, "vector_values": vector_values}


class InProcess:
    """An adapter made of functions, called through the child's own code without a process."""

    def __init__(self, **functions):
        self.functions = functions
        self.about = child.about(functions)

    def ask(self, request):
        return child.answer_to(request, self.functions, vars(tasks))
