"""Two processes on this machine: every shard is in its box, and the weights equal a run with one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("distributed_run.py")
LOOPBACK = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"}


def run(mode: str, processes: int, directory: Path) -> list[torch.Tensor]:
    commands = [[sys.executable, SCRIPT, mode, str(rank), str(processes), directory] for rank in range(processes)]
    running = [subprocess.Popen(c, env=LOOPBACK, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for c in commands]
    try:
        for process in running:
            output, _ = process.communicate(timeout=120)
            assert process.returncode == 0, output.decode()
    finally:
        for process in running:
            process.kill()
    weights: list[torch.Tensor] = torch.load(directory / f"{mode}-{processes}.pt", weights_only=True)
    return weights


@pytest.mark.parametrize("regularizers", ["", "-with-regularizers", "-graded"])
def test_two_processes_match_one_process(regularizers: str, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    one = run(f"plain{regularizers}", 1, tmp_path / "one")
    for mode in ("ddp", "fsdp") if regularizers else ("ddp", "fsdp", "zero"):
        two = run(f"{mode}{regularizers}", 2, tmp_path)
        for a, b in zip(one, two, strict=True):
            tolerance = 1e-10 if a.dtype == torch.float64 else 1e-5  # weights and measurements of a monitor
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance / 100)
