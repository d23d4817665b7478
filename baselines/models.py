"""Whole models of transformers with random weights: training steps, prefill and decode, and single layers of them.

A model is an implementation of its own sizes, once for each set of kernels that its recurrence can run on: plain
PyTorch ("native"), a library's, or ours by `integrations.install`. The pass `fw` is prefill, `fwbw` a training step and
`decode` one token for each sequence, whose cache holds `seq_len` tokens. Here is what planning needs, without torch;
`model_cases` builds.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tflabench.baselines import fla_ops, mamba, nxai
from tflabench.baselines.architectures import ARCHITECTURES, Form, Kernels
from tflabench.implementations.adapter import ATTENTION, OURS, PYTORCH, Case, Implementation, Owner
from tflabench.implementations.packages import installed
from tflabench.problem import Problem

if TYPE_CHECKING:
    import torch

OWNERS: dict[Kernels, Owner] = {
    "native": PYTORCH, "mlstm_kernels": nxai.OWNER, "mlstm_kernels_limit": nxai.OWNER, "fla": fla_ops.OWNER,
    "mamba_ssm": mamba.OWNER, "ours": OURS, "sdpa": ATTENTION,
}  # fmt: skip
# Packages, as they are imported and as they are distributed, beside transformers.
NEEDS: dict[Kernels, dict[str, str]] = {
    "mlstm_kernels": {"xlstm": "xlstm", "mlstm_kernels": "mlstm_kernels"},
    "mlstm_kernels_limit": {"xlstm": "xlstm", "mlstm_kernels": "mlstm_kernels"},
    "fla": {"fla": "flash-linear-attention"},
    "mamba_ssm": {"mamba_ssm": "mamba-ssm", "causal_conv1d": "causal-conv1d"},
}
FORMS = (Form(), Form(checkpointed=True), Form(compiled=True), Form(checkpointed=True, compiled=True), Form(layer=True))


def build(name: str, kernels: Kernels, form: Form, problem: Problem, device: torch.device) -> Case:
    """Return the Case of a model on some kernels."""
    from tflabench.baselines import model_cases

    return model_cases.build(ARCHITECTURES[name], kernels, form, problem, device)


def refuses(name: str, kernels: Kernels, form: Form, problem: Problem, device: str) -> str | None:
    """Return why a model cannot run at a size, or None."""
    of = ARCHITECTURES[name]
    needs = {"transformers": "transformers", **NEEDS.get(kernels, {})}
    if of.kind == "mamba2" and kernels != "native":
        needs |= NEEDS["mamba_ssm"]
        if kernels == "ours" or problem.pass_ != "fwbw":  # where PyTorch can convolve
            del needs["causal_conv1d"]
    if missing := [package for module, package in needs.items() if not installed(module)]:
        return f"needs the package {missing[0]}: pip install {missing[0]}"
    if device != "cuda" and len(needs) > 1:
        return f"the kernels of {kernels} need a GPU"
    if problem.dtype not in ("bfloat16", "float32"):
        return f"takes bfloat16 and float32, not {problem.dtype}"
    if problem.seq_len % of.step:
        return f"takes a seq_len that is a multiple of {of.step}, not {problem.seq_len}"
    if form.checkpointed and problem.pass_ != "fwbw":
        return "checkpointing is for training: the pass must be fwbw"
    if form.layer and problem.pass_ == "decode":
        return "layers alone are compared by whole sequences"
    return None


def _implementation(name: str, kernels: Kernels, form: Form) -> Implementation:
    of = ARCHITECTURES[name]
    label = OWNERS[kernels].name if kernels in ("ours", "native", "sdpa") else kernels
    return Implementation(
        name=".".join((name, kernels, *form.words)),
        family="model",
        title=", ".join((of.title, label, *form.words)),
        build=partial(build, name, kernels, form),
        refuses=partial(refuses, name, kernels, form),
        cost=of.layer_cost if form.layer else of.cost,
        owner=OWNERS[kernels],
        package="transformers",
        packages=tuple(NEEDS.get(kernels, {}).values()),
        own_process=of.kind == "mamba2",  # whose module keeps the kernels that it finds on its import
        groups=True,
        operation=name,
        width=of.options["hidden_size"],
        sizes=of.sizes,
    )


IMPLEMENTATIONS = tuple(
    _implementation(name, kernels, form)
    for name, of in ARCHITECTURES.items()
    for kernels in of.kernels
    for form in FORMS
)
