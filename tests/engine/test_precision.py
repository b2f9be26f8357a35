import pytest
from torch.backends import cuda, cudnn

import surefoot
from surefoot.engine.precision import held_precision
from surefoot.errors import UsageError
from tests.helpers import ScriptedEnv


def now():
    return cudnn.allow_tf32, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision


@pytest.fixture(autouse=True)
def _as_pytorch_begins():
    before = now()
    yield
    assert now() == before


def test_no_tensorfloat_inside_and_everything_as_before_outside():
    assert now() == (True, "tf32", "tf32")
    with held_precision("float32"):
        assert now() == (False, "ieee", "ieee")
    assert now() == (True, "tf32", "tf32")


def test_who_asks_for_tensorfloat_gets_it_for_products_too():
    before = cuda.matmul.fp32_precision
    with held_precision("tf32"):
        assert now() == (True, "tf32", "tf32")
        assert cuda.matmul.fp32_precision == "tf32"
        assert cudnn.deterministic
    assert cuda.matmul.fp32_precision == before


def test_a_cpu_does_not_round():
    with pytest.raises(UsageError, match="precision=bf16 is for GPUs"):
        surefoot.train(ScriptedEnv, preset="none", progress=False, total_steps=2048, device="cpu", precision="bf16")


def test_sums_have_a_fixed_order_inside():
    assert not cudnn.deterministic
    with held_precision("float32"):
        assert cudnn.deterministic
    assert not cudnn.deterministic


def test_it_is_undone_after_an_error():
    with pytest.raises(KeyError), held_precision("float32"):
        raise KeyError
    assert now() == (True, "tf32", "tf32")


def test_a_user_who_wants_full_precision_keeps_it():
    cudnn.allow_tf32 = False
    try:
        with held_precision("float32"):
            assert now() == (False, "ieee", "ieee")
        assert not cudnn.allow_tf32
        assert "tf32" not in now()
    finally:
        cudnn.allow_tf32 = True


def test_training_has_it():
    seen = []

    class Look(surefoot.Callback):
        def on_rollout(self, trainer, rollout):
            seen.append(now())

    surefoot.train(
        ScriptedEnv, preset="none", progress=False, num_envs=2, rollout_length=4, total_steps=16, callbacks=[Look()]
    )
    assert set(seen) == {(False, "ieee", "ieee")}
