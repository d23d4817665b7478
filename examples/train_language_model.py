"""Train small language models of mLSTM blocks on Python's own sources, and see what the input gate does to training.

This is the study of the TFLA paper (Tables 2, 3 and 6, Figs. 8 to 11) at the scale of the machine: a model of bytes is
trained for every combination of the values given. Two minutes on a CPU; on a GPU models have 31 million parameters.
Fixed gates and learnable ones, the grid of Fig. 10, and on a GPU the kernels of mlstm_kernels next to ours:

    python examples/train_language_model.py --input-gate learnable fixed --bias -10
    python examples/train_language_model.py --gate exp --eps 1e-2 1e-4 1e-6 1e-8
    python examples/train_language_model.py --gate exp --kernels tflabench xl_chunk --seed 0 1 2 3 4

The folder `training` gets tables and a picture. A claim of the paper is judged on pairs of runs, alike in all else.
"""

import argparse
from collections.abc import Callable
from functools import partial
from itertools import product
from math import isclose
from operator import gt
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from matplotlib.figure import Figure
from mlstm_layer import MLSTM
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, silu

from tflabench import ops

PLOTTED = {"loss": "loss, mean of 20 steps", "norm": "gradient norm", "gate_max": "largest input gate"}


class ModelSize(NamedTuple):
    """Sizes of a model and of its batches; d_qk is width / heads / 2, `rate` the highest learning rate."""

    width: int
    heads: int
    blocks: int
    context: int
    batch: int
    steps: int
    rate: float


SIZES = {
    "small": ModelSize(width=64, heads=2, blocks=2, context=128, batch=8, steps=200, rate=1e-2),
    "large": ModelSize(width=512, heads=4, blocks=10, context=4096, batch=4, steps=600, rate=3e-3),  # 31 M parameters
}


class Training(NamedTuple):
    """A value of each option that tells one training from another."""

    kernels: str
    gate: str
    input_gate: str
    eps: float
    bias: float
    seed: int


class Block(nn.Module):
    """An mLSTM and a SwiGLU, each behind a norm and with a skip connection."""

    def __init__(self, size: ModelSize, run: Training) -> None:
        super().__init__()
        width, wide = size.width, size.width * 8 // 3
        self.norms = nn.ModuleList(nn.RMSNorm(width, 1e-6) for _ in range(2))
        self.mix = MLSTM(width, size.heads, operation(run), run.bias, eps=run.eps)
        self.mix.input_gate.requires_grad_(run.input_gate == "learnable")
        self.up, self.down = nn.Linear(width, 2 * wide, bias=False), nn.Linear(wide, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next block's x (B, T, width)."""
        x = x + self.mix(self.norms[0](x))
        gate, value = self.up(self.norms[1](x)).chunk(2, dim=2)
        return x + self.down(silu(gate) * value)


class LanguageModel(nn.Module):
    """Logits of the next byte, capped at 30 as in the paper."""

    def __init__(self, size: ModelSize, run: Training) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, size.width)
        self.blocks = nn.Sequential(*(Block(size, run) for _ in range(size.blocks)))
        self.head = nn.Sequential(nn.RMSNorm(size.width, 1e-6), nn.Linear(size.width, 256, bias=False))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the mean loss, in nats, over tokens (B, T + 1)."""
        logits = self.head(self.blocks(self.embedding(tokens[:, :-1]))).float()
        return cross_entropy((30 * torch.tanh(logits / 30)).flatten(0, 1), tokens[:, 1:].flatten())


def operation(run: Training) -> Callable[..., Tensor]:
    """Return the mLSTM of a run: ours, or a kernel of mlstm_kernels, which gets the same tensors."""
    if run.kernels == "tflabench":
        return getattr(ops, f"mlstm_{run.gate}")
    from mlstm_kernels.torch import chunkwise

    more = {"normalize": False} if run.gate == "sig" else {}
    kernel = getattr(chunkwise, f"mlstm{'_siging' if run.gate == 'sig' else ''}_chunkwise__{run.kernels}")

    def theirs(*inputs: Tensor, layout: str) -> Tensor:  # "bthd", theirs is "bhtd"
        with torch.autocast("cuda", enabled=False):
            h = kernel(*(x.transpose(1, 2) for x in inputs), autocast_kernel_dtype=torch.bfloat16, **more)
        return h.transpose(1, 2)

    return theirs


def texts(device: str) -> tuple[Tensor, Tensor]:
    """Return the bytes of Python's standard library: to train on, and of every 20th file to validate with."""
    folder = Path(argparse.__file__).parent
    files = sorted(p for p in folder.rglob("*.py") if not {"site-packages", "test"} & {*p.relative_to(folder).parts})

    def read(paths: list[Path]) -> Tensor:
        return torch.frombuffer(bytearray(b"".join(map(Path.read_bytes, paths))), dtype=torch.uint8).to(device)

    return read([path for n, path in enumerate(files) if n % 20]), read(files[::20])


def batch_of(text: Tensor, size: ModelSize, random: torch.Generator) -> Tensor:
    """Return windows of the text (batch, context + 1) from anywhere."""
    starts = torch.randint(len(text) - size.context - 1, (size.batch, 1), generator=random)
    return text[(starts + torch.arange(size.context + 1)).to(text.device)].long()


def train(run: Training, size: ModelSize, text: Tensor, held_out: Tensor) -> tuple[pd.DataFrame, dict[str, float]]:
    """Train a model by the paper's recipe; return what was seen at every step, and of the whole run."""
    torch.manual_seed(run.seed)
    device, random = text.device.type, torch.Generator().manual_seed(run.seed)
    model = LanguageModel(size, run).to(device)
    weights = [p for p in model.parameters() if p.ndim == 2 and p is not model.embedding.weight]
    rest = [model.embedding.weight, *(p for p in model.parameters() if p.ndim < 2)]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=size.rate, betas=(0.9, 0.95), fused=device == "cuda")
    rates = {"pct_start": max(0.1, 2 / size.steps), "div_factor": 10, "final_div_factor": 1, "cycle_momentum": False}
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, size.rate, size.steps, **rates)
    largest: list[Tensor] = []  # of a step, layer by layer
    layers = [module for module in model.modules() if isinstance(module, MLSTM)]
    for layer in layers:
        layer.input_gate.register_forward_hook(lambda gate, x, i: largest.append(i.detach().float().max()))
    rows: list[Tensor] = []  # read at the end: a GPU need not wait
    for _ in range(size.steps):
        largest.clear()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = model(batch_of(text, size, random))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        rows.append(torch.stack([loss.detach(), norm, layers[0].capped(torch.stack(largest).max())]))
    steps = pd.DataFrame(torch.stack(rows).tolist(), columns=list(PLOTTED))
    random.manual_seed(0)  # all are validated with the same windows
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        losses = [model(batch_of(held_out, size, random)) for _ in range(20)]
    peaks = {"peak_norm": steps["norm"][size.steps // 10 :].max(), "gate_max": steps["gate_max"].max()}
    return steps, {"end_loss": torch.stack(losses).mean().item(), **peaks}


def draw(steps: pd.DataFrame, path: Path) -> None:
    """Draw what was seen at every step: columns for settings, colours for biases, lines for seeds."""
    settings = list(steps.groupby(["kernels", "gate", "input_gate", "eps"], sort=False))
    figure = Figure(figsize=(1 + 3 * len(settings), 7), layout="constrained")
    axes = figure.subplots(3, len(settings), sharex=True, sharey="row", squeeze=False)
    for column, (setting, part) in zip(axes.T, settings, strict=True):
        for n, (bias, runs) in enumerate(part.groupby("bias")):
            for axis, name in zip(column, PLOTTED, strict=True):
                lines = runs.set_index(["step", "seed"])[name].unstack().rolling(20 if name == "loss" else 1, 1).mean()
                axis.plot(lines, color=f"C{n}", linewidth=0.7, label=[f"bias {bias:g}", *[None] * (lines.shape[1] - 1)])
                axis.set_ylabel(PLOTTED[name])
        column[0].set_title("mLSTM{1}, {2} gate\n{0}, eps {3:g}".format(*setting), fontsize=9)
        column[1].set_yscale("log")
        column[2].set_xlabel("step")
    axes[0, 0].legend()
    figure.savefig(path, dpi=100)


class PaperClaim(NamedTuple):
    """A claim of the paper on two runs that differ in one option: `holds` of what was seen with either value."""

    text: str
    option: str
    values: tuple[str | float, str | float]
    seen: str
    holds: Callable[[float, float], bool]
    bias: float | None = None  # of both runs; None: any


near = partial(isclose, rel_tol=0.01)
CLAIMS = (
    PaperClaim("Figs. 8, 9: bias -10 has lower gradient peaks than 0", "bias", (0.0, -10.0), "peak_norm", gt),
    PaperClaim("Figs. 8, 9: bias -10 ends with a lower loss than 0", "bias", (0.0, -10.0), "end_loss", gt),
    PaperClaim("Figs. 8, 9: exp has lower peaks than sig from bias 0", "gate", ("sig", "exp"), "peak_norm", gt, 0.0),
    PaperClaim("Fig. 10: eps 1e-6 ends with a lower loss than 1e-2", "eps", (1e-2, 1e-6), "end_loss", gt, -10.0),
    PaperClaim("Fig. 11: input gates stay below 0", "bias", (-10.0, -10.0), "gate_max", lambda x, _: x < 0),
    PaperClaim("Table 2: sig ends with the loss of exp, within 1%", "gate", ("exp", "sig"), "end_loss", near, -10.0),
    PaperClaim("Table 3: kernels end with the same loss", "kernels", ("tflabench", "xl_chunk"), "end_loss", near),
    PaperClaim("Table 6: learnable gates end lower", "input_gate", ("fixed", "learnable"), "end_loss", gt, -10.0),
)


def judge(claim: PaperClaim, runs: pd.DataFrame) -> str:
    """Return in how many pairs of runs a claim holds."""
    like = runs if claim.bias is None else runs[runs["bias"] == claim.bias]
    first, second = (like[like[claim.option] == value] for value in claim.values)
    pairs = first.merge(second, on=[name for name in Training._fields if name != claim.option])
    if pairs.empty:
        return "not tried, needs --{} {} {}".format(claim.option.replace("_", "-"), *claim.values)
    held = sum(map(claim.holds, pairs[f"{claim.seen}_x"], pairs[f"{claim.seen}_y"]))
    return f"{ {len(pairs): 'shown', 0: 'not shown'}.get(held, 'undecided') }, {held} of {len(pairs)} pairs of runs"


def main() -> None:
    """Train with every combination of the values given, and say what that shows."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--kernels", nargs="+", default=["tflabench"], choices=["tflabench", "limit_chunk", "xl_chunk"])
    add("--gate", nargs="+", default=["exp", "sig"], choices=["exp", "sig"], help="input gate")
    add("--input-gate", nargs="+", default=["learnable"], choices=["learnable", "fixed"])
    add("--eps", nargs="+", default=[1e-6], type=float, help="of the norm behind the mLSTM")
    add("--bias", nargs="+", default=[0.0, -2.0, -5.0, -10.0], type=float, help="of the input gate, at first")
    add("--seed", nargs="+", default=[0], type=int, help="of weights and batches")
    add("--size", choices=SIZES, default="large" if device == "cuda" else "small")
    add("--steps", type=int, help="of a run")
    add("--out", type=Path, default=Path("training"), help="folder")
    given = parser.parse_args()
    size = SIZES[given.size]._replace(steps=given.steps or SIZES[given.size].steps)
    text, held_out = texts(device)
    given.out.mkdir(parents=True, exist_ok=True)
    every_step, every_run = [], []
    for run in map(Training._make, product(*(getattr(given, name) for name in Training._fields))):
        steps, of_run = train(run, size, text, held_out)
        every_step.append(steps.assign(step=steps.index, **run._asdict()))
        every_run.append(run._asdict() | of_run)
        pd.concat(every_step).to_csv(given.out / "steps.csv", index=False, float_format="%.5g")
        pd.DataFrame(every_run).to_csv(given.out / "runs.csv", index=False, float_format="%.5g")
        print(*run, *(f"{name} {value:.3g}" for name, value in of_run.items()), flush=True)
    draw(pd.concat(every_step), given.out / "training.png")
    for claim in CLAIMS:
        print(f"{claim.text}: {judge(claim, pd.DataFrame(every_run))}")


if __name__ == "__main__":
    main()
