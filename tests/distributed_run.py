"""One process of a run on one or two processes; process 0 saves the weights at the end.

Usage: distributed_run.py MODE RANK PROCESSES DIRECTORY
"""

import math
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import weightclip as wc

KAPPA = 0.9


def main(mode: str, rank: int, processes: int, directory: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/{mode}", rank=rank, world_size=processes)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    if mode.startswith("ddp"):
        model = nn.parallel.DistributedDataParallel(model)
    elif mode.startswith("fsdp"):
        mesh = dist.init_device_mesh("cpu", (processes,))
        for layer in (model[0], model[2], model):  # type: ignore[index]
            fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    if mode == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer  # slow to import

        model = nn.parallel.DistributedDataParallel(model)
        # On every process, because one that does not raise would wait for the others.
        with pytest.raises(ValueError, match="ZeroRedundancyOptimizer splits the parameters"):
            ZeroRedundancyOptimizer(model.parameters(), wc.clipped(torch.optim.Adam), lr=0.1, kappa=KAPPA)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    kappa = wc.graded(0.3, 1.2, output_layers="*2.*") if mode.endswith("graded") else KAPPA
    if mode == "fsdp-graded":
        with pytest.raises(ValueError, match="so that all processes measure at the same ones"):
            wc.Monitor(optimizer, model)
    monitor = wc.Monitor(optimizer, model, every=2) if mode.endswith("graded") else None
    clipper = wc.clip_weights(optimizer, model, kappa=kappa, bounds="init", track_clipped=True)
    if mode.endswith("regularizers"):
        wc.l2_init(optimizer, 0.01)
        wc.shrink_and_perturb(optimizer, 0.01, 0.1)

    cut = 0.0
    for step in range(6):
        x = torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        mine = x.chunk(processes)[rank]
        optimizer.zero_grad()
        (model(mine) - 2.0).square().mean().backward()
        optimizer.step()
        cut += clipper.clipped_fraction
        for name, p in model.named_parameters():
            shard: Tensor = p.to_local() if hasattr(p, "to_local") else p
            highest = 2.0 if mode.endswith("graded") else KAPPA
            bound = highest * (clipper.bounds[name.removeprefix("module.")].s or math.inf)
            assert shard.numel() == 0 or shard.abs().max().item() <= bound, f"{name} on process {rank}"
    assert cut > 0, "nothing was clipped"

    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    if monitor is not None:
        names = ("norm_ratio", "beyond_1", "relative_update", "effective_rank")
        whole.append(torch.tensor([[row[name] for name in names] for row in monitor.table()], dtype=torch.float32))
    if mode != "zero":  # which saves on one process only
        optimizer.load_state_dict(optimizer.state_dict())
    if rank == 0:
        torch.save([p.detach() for p in whole], directory / f"{mode}-{processes}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
