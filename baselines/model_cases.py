"""Models of transformers made ready to run: what is timed is a whole step, what is checked its first blocks.

A training step embeds tokens, computes the loss of the next ones, differentiates by every parameter and runs AdamW with
a learning rate of 0: all of its work, and weights that stay, so that results can be held against each other. What is
compared with float64 are the first blocks, on drawn embeddings, with plain PyTorch in the place of the kernels.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import pkgutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from statistics import median
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.attention import SDPBackend, sdpa_kernel

from tflabench.baselines.architectures import Architecture, Form, Kernels
from tflabench.implementations.adapter import Case, Unsupported, draw
from tflabench.implementations.packages import installed
from tflabench.integrations import Installed, IntegrationError, install
from tflabench.problem import Problem

DECODED = 16  # steps compared, one after the other
NOTED = 3  # steps whose recurrence is timed
ENDLESS = 1 << 40  # steps
BACKENDS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
XLSTM_KERNELS: dict[Kernels, dict[str, Any]] = {
    "mlstm_kernels": {"chunkwise_kernel": "chunkwise--triton_xl_chunk", "chunk_size": 128},
    "mlstm_kernels_limit": {"chunkwise_kernel": "chunkwise--triton_limit_chunk", "chunk_size": 64},
}
TRITON_STEPS = {"sequence_kernel": "native_sequence__triton", "step_kernel": "triton"}
_learned: dict[object, dict[str, Any]] = {}  # of points that this process has built before


def build(of: Architecture, kernels: Kernels, form: Form, problem: Problem, device: torch.device) -> Case:
    """Return the Case of a model, or of one of its layers.

    Raises:
        Unsupported: our kernels cannot be put into it, or no call reaches them.
    """
    switch = _Switch(of)
    switch.to(kernels)
    training = problem.pass_ == "fwbw"
    weights = torch.float32 if training and not form.layer else getattr(torch, problem.dtype)
    fa3 = form.layer and of.bounded == "attention" and device.type == "cuda" and installed("flash_attn_interface")
    attention = "flash_attention_3" if fa3 else None
    options = _options(of, kernels, problem.dtype, training, part=form.layer)
    model = _model(of, options, weights, device, attention).train(training).requires_grad_(training)
    if form.checkpointed:
        model.gradient_checkpointing_enable()
    part = _first_blocks(model.base_model, of.blocks)
    compute = _layer if form.layer else _decoded if problem.pass_ == "decode" else _hidden
    # Weights in float32 need it, and so does plain PyTorch, where gates are in float32 and keys are not.
    autocast = _autocast(device, getattr(torch, problem.dtype), weights == torch.float32 or kernels == "native")
    truths: dict[torch.dtype, Any] = {}

    def oracle(inputs: Mapping[str, Tensor]) -> Tensor:
        x = inputs["x"]
        switch.to("native")
        if x.dtype not in truths:
            truths[x.dtype] = _truth(of, part, x.dtype, device)
        with _autocast(device, x.dtype):
            return (_layer if form.layer else _hidden)(truths[x.dtype], x).to(x.dtype)

    def forward() -> Tensor:
        switch.to(kernels)
        with autocast:
            return compute(part, x.to(weights)).to(x.dtype)

    steps = DECODED if problem.pass_ == "decode" else problem.seq_len
    inputs = draw(problem, device, {"x": (problem.batch, steps, 1, model.config.hidden_size)})
    x = inputs["x"]
    details: dict[str, Any] = {"parameters": of.parameters, **dict.fromkeys(form.words, True)}
    details |= {"attention": attention} if attention else {}
    with torch.no_grad():
        forward()
    if kernels == "ours":
        switch.require_calls()
    if form.layer:
        leaves = [x, *_mixer(part)[0].parameters(), *_mixer(part)[1].parameters()]

        def step() -> object:
            y = forward()
            return torch.autograd.grad(y, leaves, torch.ones_like(y), allow_unused=True) if training else y

        return Case(inputs, forward, oracle, "bthd", step=step, details=details)

    ids = torch.randint(model.config.vocab_size, (problem.batch, problem.seq_len), device=device)
    built_before = (of.title, kernels, form, problem) in _learned
    learned = _learned.setdefault((of.title, kernels, form, problem), {})
    if training:
        run = _Training(model, ids, form, autocast, learned)
    else:
        run = _Inference(model, ids, form, autocast, decode=problem.pass_ == "decode")

    def whole() -> None:
        switch.to(kernels)
        run()

    if not built_before:
        whole()  # compiles, and finds out how many sequences fit
        learned |= {} if form.compiled else {"recurrence_ms": _recurrence_ms(of, whole, device)}

    return Case(inputs, forward, oracle, "bthd", step=whole, details=details | learned)


class _Switch:
    """Puts a set of kernels under the models of this process: one set at a time, which the next replaces."""

    _handle: ClassVar[Installed | None] = None
    _replaced: ClassVar[ExitStack] = ExitStack()
    _now: ClassVar[tuple[str, Kernels] | None] = None

    def __init__(self, of: Architecture) -> None:
        self._of = of

    def to(self, kernels: Kernels) -> None:
        """Let functions that models look up at each call be these."""
        if _Switch._now == (self._of.kind, kernels):
            return
        _Switch._now = None
        if _Switch._handle and self._of.kind != "mamba2":  # whose module keeps what it finds on its import
            _Switch._handle.uninstall()
            _Switch._handle = None
        _Switch._replaced.close()
        if kernels == "ours" and not _Switch._handle:
            try:  # before the model's module is imported, which keeps what it finds then
                _Switch._handle = install("mamba_ssm" if self._of.kind == "mamba2" else "transformers")
            except IntegrationError as error:
                raise Unsupported(str(error)) from error
        for holder, name in _places(self._of) if self._of.kind != "xlstm" else ():  # whose configuration says it
            function = getattr(holder, name)
            if kernels == "native":
                plain = inspect.unwrap(function)  # which transformers wraps
                _Switch._replaced.enter_context(patch.object(holder, name, plain))
            elif inspect.isfunction(function):
                of_package = inspect.getclosurevars(function).nonlocals.get("is_new_implementation", True)
                if not of_package:
                    raise Unsupported(f"transformers has found no package with {name}: it computes in plain PyTorch")
        _Switch._now = self._of.kind, kernels

    def require_calls(self) -> None:
        """Raise Unsupported where no call has reached our kernels since they were put in."""
        if self._handle and not self._handle.calls:
            reasons = "; ".join(f"{name}: {why}" for name, why in self._handle.left.items())
            raise Unsupported(f"no call reaches our kernels: {reasons or 'the model looks up others'}")


def _places(of: Architecture) -> Iterator[tuple[Any, str]]:
    """Yield the module or class, and the name, of every function that computes the recurrence here."""
    for path in of.recurrence:
        holder, _, name = path.rpartition(".")
        with suppress(ImportError, AttributeError):
            place = pkgutil.resolve_name(holder)
            getattr(place, name)
            yield place, name


def _options(of: Architecture, kernels: Kernels, dtype: str, training: bool, *, part: bool) -> dict[str, Any]:
    """Return the arguments of the configuration of a model, or of its first blocks, that runs on some kernels."""
    options = of.options | ({"num_hidden_layers": of.blocks} if part else {})
    if of.kind == "xlstm":
        options |= {"autocast_kernel_dtype": dtype, "mode": "train" if training else "inference"}
        options["max_inference_chunksize"] = ENDLESS  # longer sequences are not cut
        if kernels in XLSTM_KERNELS:
            options |= XLSTM_KERNELS[kernels] | TRITON_STEPS
    return options


def _model(
    of: Architecture, options: Mapping[str, Any], dtype: torch.dtype, device: torch.device, attention: str | None = None
) -> Any:
    """Return a causal language model with random weights; `attention` is one that transformers has, None its choice."""
    library: Any = importlib.import_module("transformers")
    config = getattr(library, of.config)(**options)
    with device:
        return library.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)


def _blocks(base: Any) -> str:
    return "blocks" if hasattr(base, "blocks") else "layers"


def _first_blocks(base: Any, count: int) -> Any:
    """Return a model of the first blocks of another, with its parameters."""
    part = copy.copy(base)
    part._modules = dict(base._modules)
    setattr(part, _blocks(base), nn.ModuleList(getattr(base, _blocks(base))[:count]))
    return part


def _truth(of: Architecture, part: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """Return the first blocks in plain PyTorch with the weights of `part`."""
    options = _options(of, "native", "float32", training=False, part=True)
    if of.kind == "xlstm":
        options["norm_reduction_force_float32"] = False
    truth = _model(of, options, torch.float32, device).base_model.eval()
    truth.load_state_dict(part.state_dict())
    for module in truth.modules():  # the functions that xLSTM's backend keeps: its configuration takes no float64
        for name in ("_inference_fn", "_train_fn"):
            if name in vars(module):
                vars(module)[name].keywords["autocast_kernel_dtype"] = dtype
    return truth.to(dtype).requires_grad_(False)


def _autocast(device: torch.device, dtype: torch.dtype, wanted: bool = True) -> torch.autocast:
    """Return a block whose products are in bfloat16 where that is the dtype of a problem, and wanted."""
    return torch.autocast(device.type, torch.bfloat16, enabled=wanted and dtype == torch.bfloat16)


def _hidden(base: Any, x: Tensor) -> Tensor:
    """Return the last hidden states (B, T, 1, E) of embeddings like them."""
    return base(inputs_embeds=x.squeeze(2), use_cache=False).last_hidden_state[:, :, None]


def _decoded(base: Any, x: Tensor) -> Tensor:
    """Return the same, step by step through a cache."""
    steps, cache = [], {}
    for step in x.squeeze(2).split(1, dim=1):
        out = base(inputs_embeds=step, use_cache=True, **cache)
        cache = _cache(out)
        steps.append(out.last_hidden_state)
    return torch.cat(steps, dim=1)[:, :, None]


def _cache(out: Any) -> dict[str, Any]:
    """Return the cache of an output, as the argument of the next call."""
    return next({name: out[name]} for name in ("cache", "past_key_values") if out.get(name) is not None)


def _mixer(base: Any) -> tuple[Any, Any]:
    """Return the norm and the layer of the first block, without its feed-forward part."""
    block = getattr(base, _blocks(base))[0]
    norm = next(getattr(block, name) for name in ("norm_mlstm", "input_layernorm", "norm") if hasattr(block, name))
    layers = ("mlstm_layer", "linear_attn", "mixer", "self_attn")
    return norm, next(getattr(block, name) for name in layers if hasattr(block, name))


def _layer(base: Any, x: Tensor) -> Tensor:
    """Return what the first layer adds to x (B, T, 1, E)."""
    norm, layer = _mixer(base)
    more = {}
    if hasattr(base, "rotary_emb") and type(layer).__name__.endswith("Attention"):
        places = torch.arange(x.shape[1], device=x.device)[None]
        more = {"position_embeddings": base.rotary_emb(x, places), "attention_mask": None}
    with sdpa_kernel(BACKENDS, set_priority=True):
        y = layer(norm(x.squeeze(2)), **more)
    return (y[0] if isinstance(y, tuple) else y)[:, :, None]


class _Training:
    """A training step: so many sequences at once as fit, which `learned` keeps, with gradients that add up."""

    def __init__(self, model: Any, ids: Tensor, form: Form, autocast: torch.autocast, learned: dict[str, Any]) -> None:
        self._autocast = autocast
        self._model = torch.compile(model) if form.compiled else model
        self._ids, self._learned = ids, learned
        self._learned.setdefault("sequences_at_once", len(ids))
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=ids.is_cuda)
        for x in model.parameters():  # so that its states are there when what fits is found out
            x.grad = torch.zeros_like(x)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def __call__(self) -> None:
        while not self._fits():
            self._optimizer.zero_grad()
            torch.cuda.empty_cache()
            self._learned["sequences_at_once"] //= 2
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _fits(self) -> bool:
        try:
            for ids in self._ids.split(self._learned["sequences_at_once"]):
                with self._autocast:  # anew for each: it keeps weights that it has cast, with their graph
                    loss = self._model(input_ids=ids, labels=ids, use_cache=False).loss
                (loss * (len(ids) / len(self._ids))).backward()
        except torch.OutOfMemoryError:
            if self._learned["sequences_at_once"] == 1:
                raise
            return False
        return True


class _Inference:
    """The logits of the next token: of sequences, or of one token behind a cache, which every call makes longer."""

    def __init__(self, model: Any, ids: Tensor, form: Form, autocast: torch.autocast, *, decode: bool) -> None:
        base = model.base_model
        self._base, self._head = torch.compile(base) if form.compiled else base, model.get_output_embeddings()
        self._ids, self._cache, self._autocast = ids, {}, autocast
        if decode:
            with torch.no_grad(), autocast:
                self._cache = _cache(base(input_ids=ids, use_cache=True))
            self._ids = ids[:, -1:]

    @torch.no_grad()
    def __call__(self) -> Tensor:
        with self._autocast:
            out = self._base(input_ids=self._ids, use_cache=True, **self._cache)
            return self._head(out.last_hidden_state[:, -1:].to(self._head.weight.dtype))


# --- How long a step is in its recurrence


def _recurrence_ms(of: Architecture, run: Callable[[], object], device: torch.device) -> float:
    """Return the milliseconds of a step between entries and exits of its recurrence, the median of NOTED steps."""
    cuda = device.type == "cuda"
    notes: list[Any] = []

    def note() -> None:
        notes.append(torch.cuda.Event(enable_timing=True) if cuda else 1e3 * time.perf_counter())
        if cuda:
            notes[-1].record()

    def once() -> float:
        notes.clear()
        run()
        pairs = zip(notes[::2], notes[1::2], strict=True)
        if not cuda:
            return sum(end - start for start, end in pairs)
        torch.cuda.synchronize(device)
        return sum(start.elapsed_time(end) for start, end in pairs)

    with ExitStack() as replaced:
        for holder, name in _places(of):
            replaced.enter_context(patch.object(holder, name, _noting(getattr(holder, name), note)))
        return median(once() for _ in range(NOTED))


def _noting(function: Callable[..., Any], note: Callable[[], None]) -> Callable[..., Any]:
    """Return a function that calls `note` before and after its forward pass, and before and after its backward pass."""

    def noted(*args: Any, **named: Any) -> Any:
        given = [x for x in (*args, *named.values()) if isinstance(x, Tensor) and x.requires_grad]
        note()
        try:
            out = function(*args, **named)
        finally:  # a checkpoint ends its second forward by an exception
            note()
        first = out[0] if isinstance(out, tuple) else out
        if given and isinstance(first, Tensor) and first.requires_grad:
            first.register_hook(lambda grad: note())
            register_multi_grad_hook(given, lambda grads: note())
        return out

    return noted
