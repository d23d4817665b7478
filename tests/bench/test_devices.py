"""Which devices a sweep asks for: options that mean nothing together, kinds of GPU, and nodes of other versions."""

from __future__ import annotations

from typing import Any

import pytest

from tflabench.bench import on_ray
from tflabench.bench.devices import Devices, _by_kind
from tflabench.bench.machine import Machine
from tflabench.bench.on_ray import difference, require_alike
from tflabench.problem import InputError


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "tpu"}, "--device is 'tpu': it must be one of auto, cuda, cpu"),
        ({"executor": "slurm"}, "--executor is 'slurm': it must be one of local, ray"),
        ({"ray_address": "here"}, "--ray-address is given without --executor ray"),
        ({"mixed_versions": True}, "--allow-mixed-versions is given without --executor ray"),
        ({"gpus": "0"}, "--gpus is '0': it must be a number of GPUs from 1 to 1024, or all"),
        ({"gpus": "many"}, "--gpus is 'many'"),
        ({"gpus": 2, "device": "cpu"}, "--gpus 2 and --device cpu are both given"),
        ({"executor": "ray", "gpus": "2"}, "--gpus and --executor ray are both given"),
        ({"executor": "ray", "kinds": ("H100",), "device": "cpu"}, "--gpu H100 and --device cpu are both given"),
    ],
)
def test_options_that_mean_nothing_together(options: dict[str, Any], says: str):
    with pytest.raises(InputError) as error:
        Devices(**options)
    assert str(error.value).startswith(says)


def test_without_ray_one_line_says_how_to_get_it(monkeypatch, capsys):
    from tflabench.cli.main import app

    monkeypatch.setattr(on_ray, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as end:
        app(["sweep", "--executor", "ray", "--device", "cpu"])
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert err == "tflabench: --executor ray needs Ray, which is not installed: pip install '.[ray]' in a checkout\n"


def test_a_kind_of_gpu_that_is_nowhere_is_refused():
    h100, h200 = (Machine("cuda", f"NVIDIA {kind}", 2**36) for kind in ("H100", "H200"))
    there = [("H100", [h100]), ("H200", [h200]), ("H200", [h200])]
    assert _by_kind(there, ()) == {None: {h100.name: h100, h200.name: h200}}
    assert _by_kind(there, ["H200"]) == {"H200": {h200.name: h200}}
    with pytest.raises(InputError, match="--gpu is 'A100', which no node has: there is H100, H200"):
        _by_kind(there, ["H100", "A100"])


def test_nodes_of_other_versions_are_refused_by_name():
    here = {"source_hash": "0123", "Python": "3.11.7", "torch": "2.11.0"}
    assert difference(dict(here), here) is None
    other = difference({"source_hash": "4567", "Python": "3.11.7", "triton": "3.6.0"}, here)
    assert other == "source_hash 4567, not 0123; torch missing, not 2.11.0; triton 3.6.0, not missing"
    require_alike({"a": None})
    with pytest.raises(InputError, match=r"^node b has source_hash 4567, .* --allow-mixed-versions"):
        require_alike({"a": None, "b": other})
