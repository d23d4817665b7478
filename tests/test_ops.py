"""`tflabench.ops`, the public operations: their example, and what `choose` says of them."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tflabench import ops
from tflabench.kernels import backends
from tflabench.kernels.common.contract import Kernels
from tflabench.kernels.families import FAMILIES
from tflabench.kernels.scalar import reference

FUNCTIONS = {name: getattr(ops, name) for name in ops.__all__ if inspect.isfunction(getattr(ops, name))}
SEQUENCES = [name for name, x in FUNCTIONS.items() if "return_last_state" in inspect.signature(x).parameters]
STEPS = [name for name in FUNCTIONS if name == "step" or name.endswith("_step")]


def test_the_literals_are_what_runs():
    assert set(get_args(ops.Implementation)) == {*FAMILIES["scalar"].implementations}


def test_there_are_operations_and_a_step_for_each():
    assert len(SEQUENCES) > 1
    assert set(STEPS) == {"step" if name == "chunkwise" else f"{name}_step" for name in SEQUENCES}


def test_the_example_runs(capsys):
    (example,) = re.findall(r"runs on any device:\n\n(.*)", inspect.getdoc(ops) or "", re.DOTALL)
    code = textwrap.dedent(example)
    names: dict[str, Any] = {}
    exec(compile(code, "ops", "exec"), names)
    assert names["h"].shape == (2, 4, 100, 32)
    assert names["h_next"].shape == (2, 4, 32)
    assert all(names[x].grad.isfinite().all() for x in "qkvif")
    assert capsys.readouterr().out == "no kernel runs here: q is on cpu, and kernels need a CUDA device\n"


def test_the_library_of_kernels_stands_alone():
    code = """
import sys
import tflabench.kernels.api, tflabench.kernels.step
others = [m for m in sys.modules if m.startswith("tflabench.") and not m.startswith("tflabench.kernels")]
print("LOADED", sorted(m for m in others if m != "tflabench.kernels"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "LOADED []"


def test_unknown_options_are_named():
    x, gate, state = torch.zeros(1, 2, 3, 16), torch.zeros(1, 2, 3), ops.State(torch.zeros(1, 2, 16, 16))
    unknown: Any = {"implementatoin": "auto"}
    words = r"implementatoin is no option \(did you mean implementation\?\): it must be one of "
    with pytest.raises(TypeError, match=words):
        ops.simple_gla(x, x, x, gate, **unknown)
    with pytest.raises(TypeError, match=words):
        ops.gla(x, x, x, x, **unknown)
    with pytest.raises(TypeError, match=words):
        ops.simple_gla_step(x[:, :, 0], x[:, :, 0], x[:, :, 0], gate[:, :, 0], state, **unknown)


# --- What runs, and why


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors on an H100 that has no memory, as far as a choice goes."""
    pytest.importorskip("triton")
    from tflabench.kernels.common import device
    from tflabench.kernels.common.sizes import Device

    monkeypatch.setattr(device, "figures", lambda _: Device(90, 132))
    monkeypatch.setattr(backends, "_has_tensor_cores", lambda device: True)
    with FakeTensorMode():
        yield


def tensors(d_qk: int = 128, d_hv: int = 256, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor]:
    q, v = (torch.empty(2, 4, 4096, d, device="cuda", dtype=dtype) for d in (d_qk, d_hv))
    return q, v


@pytest.mark.usefixtures("gpu")
class TestChoiceOnAGpu:
    def test_the_first_choice(self):
        q, v = tensors()
        assert ops.choose(q, v, gate=ops.MLSTM_EXP)[::2] == ("hopper", "hopper is the first choice and runs here")

    def test_a_refusal_is_named_with_its_reason(self):
        name, _, why = ops.choose(*tensors(16), gate=ops.MLSTM_EXP)
        assert name == "tfla_xl"
        reason = "hopper takes a d_qk that is a multiple of 16 from 32 to 256, not 16"
        assert why == f"tfla_xl is the first that runs here: {reason}"

    def test_each_refusal_is_named(self):
        words = (
            r"it must be one that can run here; tfla_xl takes a d_qk .* not 1040; tfla_limit takes a d_qk .* not 1040$"
        )
        with pytest.raises(ValueError, match=words):
            ops.choose(*tensors(1040), gate=ops.SIMPLE_GLA, implementation="tfla")

    def test_short_chunks_are_not_for_the_fused_kernels(self):
        found = ops.choose(*tensors(), gate=ops.MLSTM_EXP, chunk_size=128)
        assert found[:2] == ("tfla_xl", 128)
        assert (
            found.why == "tfla_xl is the first that runs here: hopper is slower than the next at a chunk_size below 512"
        )
        assert (
            ops.choose(*tensors(), gate=ops.MLSTM_EXP, chunk_size=128, implementation="hopper").implementation
            == "hopper"
        )

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"d_qk": 40}, "d_qk is 40 and d_hv 256, and kernels take multiples of 16 up to 1024"),
            ({"d_hv": 2048}, "d_qk is 128 and d_hv 2048, and kernels take multiples of 16 up to 1024"),
            ({"dtype": torch.float64}, "q is torch.float64, and kernels take bfloat16, float16 and float32"),
        ],
    )
    def test_why_it_is_the_reference(self, changes, reason):
        assert ops.choose(*tensors(**changes), gate=ops.SIMPLE_GLA) == (
            "reference",
            64,
            f"no kernel runs here: {reason}",
        )

    def test_an_old_gpu(self, monkeypatch):
        monkeypatch.setattr(backends, "_has_tensor_cores", lambda device: False)
        why = "no kernel runs here: cuda:0 has a compute capability below 8.0"
        assert ops.choose(*tensors(), gate=ops.SIMPLE_GLA).why == why

    def test_a_group_is_asked_for(self):
        found = ops.choose(*tensors(), gate=ops.MLSTM_EXP, implementation="tfla")
        assert found == ("tfla_xl", 256, "tfla_xl is the first choice and runs here")

    def test_a_name_is_asked_for(self):
        found = ops.choose(*tensors(), gate=ops.MLSTM_EXP, implementation="tfla_limit", chunk_size=32)
        assert found == ("tfla_limit", 32, "tfla_limit was asked for and runs here")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What kernels named "probe", which refuse nothing, are asked: shapes and backward, then config and dtype of q."""
    asked: list[Any] = []

    def default_chunk_size(q: torch.Tensor, v: torch.Tensor, *, gate: ops.Gate, backward: bool) -> int:
        asked.append((q.shape, v.shape, backward))
        return 48

    def refuses(q: torch.Tensor, v: torch.Tensor, *, gate: ops.Gate, chunk_size: int, config: Any) -> None:
        asked.append((config, q.dtype))

    never: Any = None
    made = Kernels(never, never, refuses, default_chunk_size)
    monkeypatch.setitem(FAMILIES["scalar"].kernels, "probe", lambda: made)
    backends.kernels_of.cache_clear()
    yield asked
    backends.kernels_of.cache_clear()


PROBE: Any = "probe"


def test_a_choice_is_for_a_backward_if_one_is_to_come(seen):
    q, v = torch.zeros(2, 3, 5, 16), torch.zeros(2, 3, 5, 32)
    trained = v.clone().requires_grad_()
    config: Any = "tiles"
    options: dict[str, Any] = {"gate": ops.SIMPLE_GLA, "implementation": PROBE, "config": config}
    assert ops.choose(q, v, **options)[:2] == ("probe", 16), "its 48 would be longer than the sequence"
    ops.choose(q, trained, **options)
    with torch.no_grad():
        ops.choose(q, trained, **options)
    ops.choose(q, v, backward=True, **options)
    ops.choose(q, trained, backward=False, **options)
    shapes = q.shape, v.shape
    assert seen[::2] == [(*shapes, backward) for backward in (False, True, False, True, False)]
    assert set(seen[1::2]) == {(config, torch.float32)}


def test_a_choice_is_in_the_dtype_of_autocast(seen):
    q = torch.zeros(2, 3, 5, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ops.choose(q, q, gate=ops.SIMPLE_GLA, implementation=PROBE)
    assert seen == [(q.shape, q.shape, False), (None, torch.bfloat16)]


def test_a_choice_reads_the_layout(seen):
    q, v = torch.zeros(2, 5, 3, 16), torch.zeros(2, 5, 6, 32)
    ops.choose(q, v, gate=ops.SIMPLE_GLA, layout="bthd", implementation=PROBE)
    assert seen[0] == ((2, 3, 5, 16), (2, 6, 5, 32), False)


def test_a_chunk_size_that_is_given_is_kept(seen):
    q = torch.zeros(2, 3, 5, 16)
    assert ops.choose(q, q, gate=ops.SIMPLE_GLA, chunk_size=80, implementation=PROBE).chunk_size == 80
    assert seen == [(None, torch.float32)]


def test_the_choice_is_what_runs(monkeypatch):
    """On the CPU, the reference, in the chunks that the choice names."""
    ran: list[int] = []
    run = reference.chunkwise

    def chunkwise(*inputs: Any, chunk_size: int, **options: Any) -> Any:
        ran.append(chunk_size)
        return run(*inputs, chunk_size=chunk_size, **options)

    monkeypatch.setattr(reference, "chunkwise", chunkwise)
    q, g = torch.zeros(1, 2, 100, 16), torch.zeros(1, 2, 100)
    cases: tuple[dict[str, Any], ...] = ({}, {"chunk_size": 32}, {"implementation": "reference"})
    for options in cases:
        ops.simple_gla(q, q, q, g, **options)
        choice = ops.choose(q, q, gate=ops.SIMPLE_GLA, **options)
        assert (choice.implementation, choice.chunk_size) == ("reference", ran[-1])
    assert ran == [64, 32, 64]
    assert ops.choose(q, q, gate=ops.SIMPLE_GLA, implementation="reference").why == "reference was asked for"


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"q": [1.0]}, TypeError, "q is a list: it must be a tensor"),
        ({"v": torch.zeros(2, 3)}, ValueError, "v has the shape (2, 3): it must be (B, H, T, d)"),
        ({"gate": "exp"}, TypeError, "gate is a str: it must be a tflabench.ops.Gate"),
        ({"layout": "thbd"}, ValueError, "layout is 'thbd': it must be one of bhtd, bthd"),
        ({"implementation": "cuda"}, ValueError, "implementation is 'cuda': it must be one of auto, reference"),
        ({"chunk_size": 0}, ValueError, "chunk_size is 0: it must be at least 1"),
        ({"chunk_size": -1}, ValueError, "chunk_size is -1: it must be at least 1"),
        (
            {"implementation": "hopper"},
            ValueError,
            "hopper needs a GPU of compute capability 9.0, not cpu",
        ),
    ],
)
def test_a_choice_that_cannot_be_made(changes, error, words):
    x = torch.zeros(1, 2, 3, 64)
    given: dict[str, Any] = {"q": x, "v": x, "gate": ops.SIMPLE_GLA, **changes}
    with pytest.raises(error, match=re.escape(words)) as raised:
        ops.choose(**given)
    assert "\n" not in str(raised.value)
