import subprocess
from types import SimpleNamespace

import pytest
import torch

from weightclip.lab import device
from weightclip.lab.device import check_precision, describe_device, find_device, threads


def test_auto_selects_the_gpu_if_available(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, kind in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert find_device("auto").type == kind


@pytest.mark.parametrize("name", ["cuda", "gpu", "mps", "meta"])
def test_a_missing_device_is_reported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=f"device: got '{name}'"):
        find_device(name)


@pytest.mark.parametrize(
    ("code", "out", "message"),
    [
        (0, "1.7\n", None),
        (0, "0.5\n", "takes 2.0 times as long"),
        (-4, "", r"it fails on this CPU \(SIGILL\)"),
        (1, "", r"it fails on this CPU \(RuntimeError: no memory\)"),
    ],
)
def test_bfloat16_raises_an_error_unless_it_is_faster(
    code: int, out: str, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.bfloat16_gain.cache_clear()
    done = SimpleNamespace(returncode=code, stdout=out, stderr="Traceback\nRuntimeError: no memory\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    if message is None:
        check_precision("bfloat16", torch.device("cpu"))
    else:
        with pytest.raises(ValueError, match=message):
            check_precision("bfloat16", torch.device("cpu"))
    device.bfloat16_gain.cache_clear()


def test_the_probe_runs_on_this_machine() -> None:
    """An unsupported CPU instruction ends the probe's process and not this one."""
    device.bfloat16_gain.cache_clear()
    gain = device.bfloat16_gain(1)
    assert gain == "SIGILL" or float(gain) > 0


def test_the_number_of_threads_is_reset() -> None:
    before = torch.get_num_threads()
    with threads(1):
        assert torch.get_num_threads() == 1
        assert "1 threads" in describe_device(torch.device("cpu"))
    with threads(None):
        assert torch.get_num_threads() == before
    assert torch.get_num_threads() == before
