"""A stored generator goes on, on its own kind of device and on another."""

import torch

from surefoot.engine.random_state import continued


def test_a_state_of_the_same_kind_goes_on_exactly():
    before = torch.Generator("cpu").manual_seed(3)
    state = before.get_state()
    after = torch.Generator("cpu")
    assert continued(after, state) is after
    assert torch.equal(torch.rand(5, generator=after), torch.rand(5, generator=before))


class OnAGpu:
    """A generator whose states are as short as CUDA's: sixteen bytes."""

    def __init__(self):
        self.seed = None

    def get_state(self):
        return torch.zeros(16, dtype=torch.uint8)

    def manual_seed(self, seed):
        self.seed = seed
        return self


def test_noise_that_was_drawn_on_the_host_is_drawn_there_again():
    before = torch.Generator("cpu").manual_seed(3)
    after = continued(OnAGpu(), before.get_state())
    assert after.device.type == "cpu"
    assert torch.equal(torch.rand(5, generator=after), torch.rand(5, generator=before))


def test_a_state_of_a_gpu_gives_the_same_numbers_each_time_on_a_cpu():
    state = torch.arange(16, dtype=torch.uint8)
    numbers = [torch.rand(5, generator=continued(torch.Generator("cpu"), state)) for _ in range(2)]
    assert torch.equal(*numbers)
    other = torch.rand(5, generator=continued(torch.Generator("cpu"), state + 1))
    assert not torch.equal(numbers[0], other)
