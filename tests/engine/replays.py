"""A recorder for the CPU that repeats work as a CUDA graph does: the same operations on the same memory."""

from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from surefoot.engine.cuda.recorder import Recorder


class Recording(TorchDispatchMode):
    """Every operation with its arguments and results, which stay where they are. Numbers are those of the recording."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").split(".")[0]
        assert name not in ("_local_scalar_dense", "nonzero", "equal", "is_nonzero"), f"{name} cannot be recorded"
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self):
        with torch.no_grad():
            for func, args, kwargs, result in self.calls:
                repeated = func(*args, **kwargs)
                aliases = [one.alias_info for one in func._schema.returns]
                if any(alias is not None for alias in aliases):
                    continue  # in place, or a view of what is where it was
                several = isinstance(result, (tuple, list))
                for place, new in zip(*((result, repeated) if several else ([result], [repeated])), strict=True):
                    if isinstance(place, torch.Tensor):
                        place.copy_(new)


class ReplayRecorder(Recorder):
    """Records everything that it is given, on the CPU."""

    def __init__(self):
        super().__init__()
        self.recorded = []

    def record(self, what, work, device, changed, generators=()):
        if what in self._failed:
            return work
        before = [tensor.clone() for tensor in changed]
        recording = Recording()
        with self._at_work():
            work()
            with recording:
                work()
        for tensor, old in zip(changed, before, strict=True):
            tensor.copy_(old)
        self.recorded.append(what)
        return recording.replay


@contextmanager
def counted():
    """The operations that the host asks for."""

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found.append(func.name())
            return func(*args, **(kwargs or {}))

    found = []
    with Count():
        yield found
