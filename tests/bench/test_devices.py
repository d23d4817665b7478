"""Which devices a sweep asks for: options that mean nothing together."""

from __future__ import annotations

from typing import Any

import pytest

from tflabench.bench import machine
from tflabench.bench.devices import Devices
from tflabench.bench.machine import Machine
from tflabench.problem import InputError


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "tpu"}, "--device is 'tpu': it must be one of auto, cuda, cpu"),
        ({"gpus": "0"}, "--gpus is '0': it must be a number of GPUs from 1 to 1024, or all"),
        ({"gpus": "many"}, "--gpus is 'many'"),
        ({"gpus": 2, "device": "cpu"}, "--gpus 2 and --device cpu are both given"),
        ({"gpu": "H100", "device": "cpu"}, "--gpu H100 and --device cpu are both given"),
    ],
)
def test_options_that_mean_nothing_together(options: dict[str, Any], says: str):
    with pytest.raises(InputError) as error:
        Devices(**options)
    assert str(error.value).startswith(says)


def test_a_sweep_has_gpus_of_one_kind(monkeypatch):
    gpus = [Machine("cuda", f"NVIDIA {kind}", 2**36, uuid=f"GPU-{kind}") for kind in ("H100", "A100")]
    monkeypatch.setattr(machine, "gpus", lambda: iter(gpus))
    assert Devices(gpus=1).fleet().machine == gpus[0]
    with pytest.raises(InputError, match="NVIDIA H100 and NVIDIA A100: choose one kind by CUDA_VISIBLE_DEVICES"):
        Devices(gpus="all").fleet()
