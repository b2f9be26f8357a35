"""Each kind of call that a compiled network takes, made with several threads; the answers as bytes, to be compared."""

import numpy as np
import torch
from gymnasium import spaces

from surefoot.engine.native.describe import as_rows, describe
from surefoot.engine.torch.flat import FlatParameters
from surefoot.kernels.classic import KINDS, ClassicEnvs, classic_library
from surefoot.kernels.network import Network
from surefoot.kernels.rollout import NativeRollout
from surefoot.kernels.specs import loss_spec, optimizer_spec
from surefoot.kernels.stored import StoredActing
from tests.building import make_policy

SEQUENCES, ENVS = 24, 12  # enough of them that every call is shared by the threads


class EveryCall:
    """A network (`memory`: none, gru, lstm) with data for it. `CALLS` name its methods; any order gives the same."""

    def __init__(self, memory="none", threads=2, steps=25):
        self.steps, self.size = steps, steps * SEQUENCES
        policy = make_policy(spaces.Discrete(2), memory=memory, hidden_sizes=(20,))
        self.theta = FlatParameters(policy).vector.detach().clone()
        self.net = Network(describe(policy), threads)
        draw = torch.Generator().manual_seed(0)
        self.x = torch.randn(self.size, 4, generator=draw)
        self.action = as_rows(torch.randint(2, (self.size,), generator=draw))
        self.columns = torch.randn(4, self.size, generator=draw)
        self.params = torch.randn(self.size, 2, generator=draw)
        self.noise = policy.actions.noise((self.size,), draw).reshape(-1, 2).contiguous()
        self.context = None
        if policy.memory is not None:
            start = torch.rand(self.steps, SEQUENCES, generator=draw) < 0.1
            self.context = (start, torch.randn(SEQUENCES, policy.memory.size, generator=draw))
        self.spec = loss_spec("clip", 0.2, value_coef=0.5, with_value=True, kl_coef=0.1)

    def batch(self):
        return self.net.batch(
            self.x, self.action, self.columns[0], self.params, *self.columns[1:4], context=self.context
        )

    def values(self):
        return self.net.values(self.theta, self.x, self.context).numpy().tobytes()

    def act(self):
        found = (torch.empty(self.size, 2), torch.empty(self.size, 1), torch.empty(self.size))
        context = after = None
        if self.context is not None:
            after = torch.zeros(self.size, self.context[1].shape[1])
            context = (torch.zeros(1, self.size, dtype=torch.bool), after)
        self.net.act(self.theta, self.x, self.noise, *found, context, after)
        return b"".join(tensor.numpy().tobytes() for tensor in found)

    def evaluate(self):
        return repr(self.net.evaluate(self.theta, self.spec, self.batch())).encode()

    def inspect(self):
        rows = np.arange(0, self.size, 7)
        found, kl, means = self.net.inspect(self.theta, self.spec, self.batch(), rows, normalize=True)
        return bytes(found) + kl.numpy().tobytes() + means.tobytes()

    def gradient(self):
        found = torch.zeros_like(self.theta)
        self.net.gradient(self.theta, self.spec, self.batch(), found, normalize=True)
        return found.numpy().tobytes()

    def epochs(self):
        theta, gradient = self.theta.clone(), torch.zeros_like(self.theta)
        moments = (torch.zeros_like(theta), torch.zeros_like(theta))
        units = self.size if self.context is None else SEQUENCES
        order = torch.stack([torch.randperm(units, generator=torch.Generator().manual_seed(k)) for k in range(3)])
        optimizer = optimizer_spec("adam", [(0, len(theta), 1e-3)], 0.5)
        self.net.epochs(
            *(theta, gradient, moments, 0, self.spec, optimizer, self.batch(), order, 3, 4),
            normalize=True,
        )
        return theta.numpy().tobytes()

    def fisher_product(self):
        found = torch.zeros_like(self.theta)
        self.net.fisher_product(self.theta, self.theta.flip(0).contiguous(), self.batch(), found)
        return found.numpy().tobytes()

    def rollout(self):
        """Of CartPole."""
        shape, memory = (self.steps, ENVS), None
        arrays = {
            "obs": np.zeros((self.steps + 1, ENVS, 4), np.float32),
            "params": np.zeros((*shape, 2), np.float32),
            "action": np.zeros(shape, np.int64),
            "log_prob": np.zeros(shape, np.float32),
            "reward": np.zeros(shape, np.float64),
            **{name: np.zeros(shape, np.bool_) for name in ("terminated", "truncated", "valid")},
        }
        if self.context is not None:
            arrays["start"] = np.zeros((self.steps + 1, ENVS), np.bool_)
            memory = torch.zeros(ENVS, self.context[1].shape[1])
        envs = ClassicEnvs(classic_library(), KINDS["CartPole"], ENVS, 0)
        envs.reset()
        arrays["obs"][0] = envs.obs
        rollout = NativeRollout(self.net, envs, arrays, None, 0)
        noise = self.noise[: self.steps * ENVS].contiguous()
        assert rollout.run(self.theta, noise, None, np.zeros(ENVS), np.zeros(ENVS, np.int64), memory) == self.steps
        return b"".join(array.tobytes() for array in arrays.values())

    def act_stored(self):
        shape, start, memory = (self.steps, ENVS), None, None
        obs = self.noise.new_zeros((self.steps + 1, ENVS, self.net.width))
        obs[0] = torch.linspace(-1.0, 1.0, ENVS * self.net.width).view(ENVS, -1)
        params, action, log_prob = torch.zeros(*shape, 2), torch.zeros(shape, dtype=torch.int64), torch.zeros(shape)
        if self.context is not None:
            start, memory = (
                torch.zeros(self.steps + 1, ENVS, dtype=torch.bool),
                torch.zeros(ENVS, self.context[1].shape[1]),
            )
        acting = StoredActing(self.net, obs, params, action, log_prob)
        scaling = (torch.full((self.net.width,), 0.1), torch.full((self.net.width,), 2.0))
        noise = self.noise[: self.steps * ENVS].view(*shape, -1).contiguous()
        acting.begin(self.theta, noise, scaling, start, memory)
        for t in range(self.steps):
            acting.act(t, slice(0, ENVS))
        return b"".join(tensor.numpy().tobytes() for tensor in (params, action, log_prob))

    def every(self):
        return {name: getattr(self, name)() for name in CALLS}


CALLS = ("values", "act", "evaluate", "inspect", "gradient", "epochs", "fisher_product", "rollout", "act_stored")
