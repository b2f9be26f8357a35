"""A whole third engine in one file: PyTorch's, which counts what it is asked for."""

from collections import Counter

from surefoot.engine.contract import Engine
from surefoot.engine.torch.engine import TorchEngine


class Counting(Engine):
    """Hands everything on to the PyTorch engine."""

    name, acts_with = "counting", "torch"
    calls: Counter = Counter()

    def __init__(self):
        self.inner = TorchEngine()
        self.operations = self.inner.operations

    def serves(self, policy, algorithm, envs):
        self.calls["serves"] += 1
        return self.inner.serves(policy, algorithm, envs)

    def learner(self, policy, algorithm, options):
        self.calls["learner"] += 1
        return self.inner.learner(policy, algorithm, options)

    def collector(self, envs, actor, options):
        self.calls["collector"] += 1
        return self.inner.collector(envs, actor, options)


class Refusing(Counting):
    """Serves nothing."""

    name = "refusing"

    def serves(self, policy, algorithm, envs):
        return "it is Sunday"


class Abstract(Engine):
    """Lacks almost everything."""

    name, acts_with = "abstract", "torch"


class Beside(Counting):
    """Lets envs be stepped on the GPU."""

    name, steps_on_device = "beside", True
