"""Train a layer with FSDP on one sequence that lies on two ranks, and see the losses of one process."""

from multiprocessing import get_context
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from tflabench import ops

RANKS, HEADS, T, D = 2, 2, 256, 16


class Layer(nn.Module):
    """mLSTMsig between two projections, with a skip connection, of x (1, T, HEADS * D)."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(HEADS * D, HEADS * (3 * D + 2))
        self.out = nn.Linear(HEADS * D, HEADS * D)

    def forward(self, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        """Return y like x; with a group x is the part of the sequence that this rank has."""
        q, k, v, i, f = self.into(x).unflatten(-1, (HEADS, -1)).split([D, D, D, 1, 1], -1)
        h = ops.mlstm_sig(q, k, v, i.squeeze(-1), f.squeeze(-1) + 3, layout="bthd", group=group)
        return x + self.out(h.flatten(2))


def train(rank: int, ranks: int, folder: str, losses: Any) -> None:
    """Meet the other ranks in a folder, take three steps, and put the mean losses over all ranks into a queue."""
    device = torch.device("cpu")
    if torch.cuda.device_count() >= RANKS:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/ranks", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model, data = Layer().to(device), torch.randn(2, 1, T, HEADS * D)
    x, y = data.chunk(ranks, 2)[rank].to(device)
    if ranks > 1:
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(3):
        loss = (model(x, dist.group.WORLD) - y).square().mean()
        loss.backward()  # FSDP takes the mean of gradients over ranks, as the loss of all steps is that of the parts
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean)
        if rank == 0:
            losses.put(mean.item() / ranks)
    dist.destroy_process_group()


if __name__ == "__main__":
    context = get_context("fork")
    for ranks in (1, RANKS):
        losses = context.Queue()
        with TemporaryDirectory() as folder:
            processes = [context.Process(target=train, args=(rank, ranks, folder, losses)) for rank in range(ranks)]
            for process in processes:
                process.start()
            print(f"ranks: {ranks}, losses:", ", ".join(f"{losses.get(timeout=60):.5f}" for _ in range(3)))
            for process in processes:
                process.join()
