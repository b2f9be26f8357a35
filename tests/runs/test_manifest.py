"""What is said of a machine that is not the one where a run began."""

import json

import pytest

from surefoot.runs import RunDirectory
from surefoot.runs.manifest import different_machine

HERE = {"kernels": {"variant": "avx2", "compiler": "gcc"}, "torch_instructions": "AVX2"}


@pytest.mark.parametrize(
    ("there", "here", "said"),
    [
        ({}, {}, ""),
        ({"gpu": "A"}, {"gpu": "A"}, ""),
        ({"gpu": "A"}, {"gpu": "B"}, "GPU B here, A there"),
        ({}, {"gpu": "B"}, ""),  # an earlier version did not say
        ({"torch_instructions": "AVX512"}, {}, "PyTorch AVX2 here, AVX512 there"),
    ],
)
def test_another_kind_of_machine_is_said(there, here, said, tmp_path):
    run = RunDirectory(tmp_path)
    run.manifest.write_text(json.dumps(HERE | there))
    notes = different_machine(run, HERE | here, kernels=True)
    assert len(notes) == bool(said)
    assert all(said in note for note in notes)
