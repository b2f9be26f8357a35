"""`python -m tests.kernels.recording FILE`: calls of the kernels with all that they read and wrote, for `replay.cpp`.

The same calls are made again on another machine, or an emulated one, and the results compared. Recorded with the
`base` kernels: what GRUs and LSTMs keep for their gradients is laid out by the number of lanes, which NEON has too.
"""

import ctypes
import os
import struct
import sys
from ctypes import c_double, c_int, c_int64, c_uint64, c_void_p

os.environ.setdefault("SUREFOOT_KERNELS", "base")

import torch

from surefoot.kernels import classic, handle, library, network, recurrent, rollout, scan, stored

WHOLE = (c_int, c_int64, c_uint64)
VALUE, REGION, HANDLE, STEP = range(4)  # kinds of argument and of pointer
NOTHING, FLOAT32, FLOAT64, EXACT = range(4)  # how a region is compared
UNKNOWN = 4096  # bytes that are copied from an address whose size nobody said
KINDS = {torch.float32: FLOAT32, torch.float64: FLOAT64, torch.int64: EXACT, torch.bool: EXACT}
UNTOLD = ("create", "moments", "running_returns")  # take addresses that nobody tells us of
SKIPPED = ("sources", "compiler", "layout", "error", "threads")
SKIPPED += ("get_state", "remembered", "where", "function")


class Recorder:
    def __init__(self, path):
        self.file = open(path, "wb")  # noqa: SIM115 (until the process ends)
        self.known, self.handles, self.made, self.calls = {}, {}, 0, 0

    def know(self, tensor):
        """Its numbers are compared; what lies behind them in the same storage is there, too."""
        size = tensor.numel() * tensor.element_size()
        behind = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()
        self.known[_data_ptr(tensor)] = size, KINDS.get(tensor.dtype, EXACT), max(size, behind)

    def call(self, name, function, types, arguments):
        if name.endswith("_destroy"):  # its address may be anything from now on
            self.handles.pop(arguments[0])
            return function(*arguments)
        known = {} if name.endswith(UNTOLD) or name.startswith("surefoot_classic") else self.known
        regions, words, doubles = Regions(known, self.handles), [], []
        for kind, value in zip(types, arguments, strict=True):
            if kind is c_double:
                doubles.append(value)
            elif kind in WHOLE:
                words.append((VALUE, int(value)))
            else:
                words.append(regions.pointer(value))
        before = [region.read(region.extent) for region in regions.found]
        result = function(*arguments)
        made = -1
        if name.endswith("_create"):
            made = len(regions.found) - 1 if isinstance(arguments[-1], type(ctypes.byref(c_int()))) else -1
            handle = int.from_bytes(regions.found[made].read(8), "little") if made >= 0 else result
            self.handles[handle] = self.made
            self.made += 1
        self._write(name, regions.found, before, words, doubles, made)
        self.calls += 1
        return result

    def _write(self, name, regions, before, words, doubles, made):
        out = self.file
        out.write(struct.pack("<i", len(name)) + name.encode())
        out.write(struct.pack("<i", len(regions)))
        for region, content in zip(regions, before, strict=True):
            compared = 0 if region.kind == NOTHING else region.size
            out.write(struct.pack("<qqq", len(content), compared, region.address % 64))
            out.write(struct.pack("<ii", region.kind, len(region.pointers)) + content)
            for offset, (kind, value) in region.pointers:
                out.write(struct.pack("<qiq", offset, kind, value))
            out.write(region.read(compared))
        out.write(struct.pack("<i", len(words)) + b"".join(struct.pack("<iq", *word) for word in words))
        out.write(struct.pack(f"<i{len(doubles)}d", len(doubles), *doubles))
        out.write(struct.pack("<i", made))


class Region:
    """Memory from an address on: `size` bytes that are compared, `extent` that a call may use."""

    def __init__(self, address, size, kind, extent):
        self.address, self.size, self.kind, self.extent, self.pointers = address, size, kind, extent, []

    def read(self, size):
        with open("/proc/self/mem", "rb", buffering=0) as memory:  # which ends where no memory is, and raises nothing
            memory.seek(self.address)
            return memory.read(size)


class Regions:
    """The memory that one call sees, directly or through a structure."""

    def __init__(self, known, handles):
        self.known, self.handles, self.found, self.at, self.texts = known, handles, [], {}, []

    def pointer(self, value):
        """An argument: an address, text, or what ctypes takes for a pointer."""
        if value is None:
            return VALUE, 0
        if isinstance(value, bytes):
            value = ctypes.create_string_buffer(value)
            self.texts.append(value)
        if isinstance(value, int):
            return self._address(value)
        target = getattr(value, "_obj", value)
        region = self._region(ctypes.addressof(target), ctypes.sizeof(target), self._kind(target))
        if isinstance(target, ctypes.Structure):
            for field in target._fields_:
                if field[1] is c_void_p and (inside := getattr(target, field[0])):
                    told = field[0] != "finished"
                    kind = (STEP, 0) if field[0] == "step" else self._address(inside, told)
                    region.pointers.append((getattr(type(target), field[0]).offset, kind))
        return REGION, self.found.index(region)

    def _kind(self, target):
        if isinstance(target, c_double) or getattr(target, "_type_", None) is c_double:
            return FLOAT64
        return EXACT if isinstance(target, c_int64) else NOTHING

    def _address(self, value, told=True):
        if value in self.handles:
            return HANDLE, self.handles[value]
        about = self.known.get(value) if told else None
        return REGION, self.found.index(self._region(value, *(about or (0, NOTHING, UNKNOWN))))

    def _region(self, address, size, kind, extent=0):
        if address not in self.at:
            self.at[address] = Region(address, size, kind, max(size, extent))
            self.found.append(self.at[address])
        return self.at[address]


class Recorded:
    """A function of a library that writes down its calls."""

    def __init__(self, recorder, name, function):
        self.recorder, self.name, self.function = recorder, name, function
        self.__name__, self.argtypes = name, []

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name in ("argtypes", "restype", "errcheck"):
            setattr(self.function, name, value)

    def __call__(self, *arguments):
        return self.recorder.call(self.name, self.function, self.argtypes, arguments)


class RecordedLibrary:
    def __init__(self, recorder, whole):
        self._recorder, self._whole, self._functions = recorder, whole, {}

    def __getitem__(self, name):
        if name not in self._functions:
            function = self._whole[name]
            skipped = name.endswith(("_step", *SKIPPED))  # a step is called by the rollout, in C++
            self._functions[name] = function if skipped else Recorded(self._recorder, name, function)
        return self._functions[name]

    __getattr__ = __getitem__


_data_ptr, _address = torch.Tensor.data_ptr, network.address


def install(path):
    """From here on every call of the kernels is recorded."""
    recorder = Recorder(path)
    libraries = {name: RecordedLibrary(recorder, library.load(name)) for name in ("nn", "classic")}

    def data_ptr(tensor):
        recorder.know(tensor)
        return _data_ptr(tensor)

    def address(array, *dtype):
        if array is not None and not isinstance(array, torch.Tensor):
            recorder.know(torch.from_numpy(array))
        return _address(array, *dtype)

    torch.Tensor.data_ptr = data_ptr
    network.address = rollout.address = stored.address = address
    for module in (classic, handle, network, recurrent, rollout, scan):
        module.load = libraries.__getitem__
    return recorder


def scenarios():
    """Short trainings of every kind, and every head with every loss."""
    import surefoot
    from tests.kernels.test_network import CASES, LOSSES, Sample

    for number, case in enumerate(CASES):
        kind = list(LOSSES)[number % len(LOSSES)]
        sample = Sample(case, threads=1 + number % 2, weighted=number % 3 == 0)
        sample.gradient(kind, **LOSSES[kind])
        rows = (torch.empty_like(sample.params), torch.empty(len(sample.x), sample.action[0].numel()))
        sample.net.act(sample.flat.vector, sample.x, sample.noise.contiguous(), *rows, torch.empty(len(sample.x)))
        out = sample.net.outputs(sample.theta, sample.x)
        sample.net.outputs_gradient(sample.theta, sample.x, torch.ones_like(out), torch.zeros(len(sample.theta)))
    short = {"total_steps": 256, "num_envs": 4, "rollout_length": 64, "eval_episodes": 0, "progress": False, "seed": 0}
    short |= {"preset": None, "engine": "native"}
    for number, (env, settings) in enumerate(
        (
            ("CartPole-v1", {"algo": "ppo", "threads": 2}),
            ("Pendulum-v1", {"algo": "trpo", "threads": 1, "normalize_observations": True}),
            ("Acrobot-v1", {"algo": "a2c", "threads": 1}),
            ("CartPole-v1", {"algo": "ppo", "memory": "gru", "threads": 2}),
            ("Pendulum-v1", {"algo": "npg", "memory": "lstm", "threads": 1}),
        )
    ):
        surefoot.train(env, run_dir=f"recorded-{number}", **short, **settings)
    for lstm in (False, True):
        gates, hidden = 4 if lstm else 3, 8
        x, state = torch.randn(5, 3, gates * hidden), torch.randn(3, (2 if lstm else 1) * hidden)
        weight, bias = torch.randn(gates * hidden, hidden, requires_grad=True), torch.randn(gates * hidden)
        out, _ = recurrent.recurrence(lstm, x, state, weight, bias, torch.rand(5, 3) < 0.3)
        out.sum().backward()


if __name__ == "__main__":
    torch.manual_seed(0)
    recorder = install(sys.argv[1])
    scenarios()
    recorder.file.close()
    print(f"{recorder.calls} calls")
