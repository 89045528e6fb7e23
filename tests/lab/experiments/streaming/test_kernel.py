"""Cached kernels: compiled once, never stale, vectorized; and rules from files outside the package."""

import errno
import importlib
import linecache
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_data import tiny_dataset

import weightclip as wc
from weightclip.lab.compiled import load_kernel
from weightclip.lab.experiments.streaming.config import Config, resolve
from weightclip.lab.experiments.streaming.fused import Fused
from weightclip.lab.experiments.streaming.kernel import kernel_source, rules_text
from weightclip.lab.experiments.streaming.problem import make_task
from weightclip.lab.experiments.streaming.reference import Reference
from weightclip.lab.experiments.streaming.rules import parse_rules
from weightclip.lab.networks.mlp import mlp

DATA = tiny_dataset()
EXAMPLE = Path(__file__).parents[4] / "examples" / "lion_rule.py"
RULE = """
from weightclip.lab.experiments.streaming import Rule

def update(w, g, lr=0.1):
    return w - FACTOR * lr * g

FACTOR = 1.0
MINE = Rule("mine", update=update)
"""


def learn_update(rules: Path) -> np.ndarray:
    settings = resolve(Config("input-permuted-mnist", "mine", hidden=(5,), rules=str(rules)))
    learner = Fused(settings, DATA)
    before = learner.weights()[0]
    learner.learn(make_task("inputs", 0, 1, 1, 0, *DATA.inputs.shape, DATA.classes))
    return learner.weights()[0] - before


@pytest.mark.parametrize("edit", [("- FACTOR * lr", "+ FACTOR * lr"), ("FACTOR = 1.0", "FACTOR = -1.")])
def test_editing_a_rule_triggers_recompilation(edit: tuple[str, str], tmp_path: Path) -> None:
    """For edits of the function or of a number it reads, within one process, one second and the same file size."""
    rules = tmp_path / "mine.py"
    rules.write_text(RULE)
    first = learn_update(rules)
    times = os.stat(rules)
    rules.write_text(RULE.replace(*edit))
    os.utime(rules, ns=(times.st_atime_ns, times.st_mtime_ns))
    second = learn_update(rules)
    assert np.abs(first).max() > 0
    np.testing.assert_allclose(second, -first, rtol=1e-3)


SCRIPT = """
import sys, numba
from test_kernel import learn_update
from pathlib import Path
compiled = []
numba.core.event.register("numba:compile", type("L", (numba.core.event.Listener,), {
    "on_start": lambda self, event: compiled.append(event), "on_end": lambda self, event: None})())
print(learn_update(Path(sys.argv[1])).ravel()[:3].tolist(), len(compiled))
"""


def learn_in_new_process(rules: Path, cache: Path) -> tuple[str, int]:
    """Learn in a new process; return the update and the number of compiled functions."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(rules)],
        env={**os.environ, "WEIGHTCLIP_CACHE": str(cache), "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    values, _, count = done.stdout.strip().rpartition(" ")
    return values, int(count)


def test_another_process_loads_the_compiled_kernel_but_not_one_of_an_older_rule(tmp_path: Path) -> None:
    rules, cache = tmp_path / "mine.py", tmp_path / "cache"
    rules.write_text(RULE)
    first, compiled = learn_in_new_process(rules, cache)
    assert compiled > 0
    assert learn_in_new_process(rules, cache) == (first, 0)
    rules.write_text(RULE.replace("- FACTOR", "+ FACTOR"))
    edited, compiled = learn_in_new_process(rules, cache)
    assert edited != first
    assert compiled > 0


def test_an_unwritable_cache_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    kernel = load_kernel(kernel_source(parse_rules("sgd"), "relu", "float64", False) + "\n", tmp_path / "file" / "in")
    assert kernel.STATES == 0
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_kernel_contains_only_what_its_method_needs(tmp_path: Path) -> None:
    kernels = {
        name: load_kernel(kernel_source(parse_rules(name), "relu", "float32", True), tmp_path)
        for name in ("sgd", "adam+l2init", "madam")
    }
    assert {name: (kernel.STATES, kernel.INITIAL) for name, kernel in kernels.items()} == {
        "sgd": (0, False),
        "adam+l2init": (2, True),
        "madam": (1, False),
    }


@pytest.mark.parametrize(
    ("method", "instructions"), [("sgd+wc", ["vmaxps", "vfmadd"]), ("adam+wc", ["vsqrtps", "vdivps"])]
)
def test_the_pass_over_the_weights_is_vectorized(method: str, instructions: list[str]) -> None:
    """Packed instructions of 256 bits or, with AVX-512, of 512 bits, on processors that have them."""
    if not os.path.exists("/proc/cpuinfo") or "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("no AVX2 here")
    source = kernel_source(parse_rules(method), "leaky_relu", "float32", True).replace("cache=True", "cache=False")
    scope: dict[str, object] = {"__name__": "kernel_to_inspect"}
    exec(compile(source, "kernel_to_inspect", "exec"), scope)
    one = [np.zeros(8, np.float32) for _ in range(4)]
    state = np.zeros((scope["STATES"], 8), np.float32)
    update_one = scope["update_one"]
    update_one(
        *(one[0], state, one[1], np.zeros(scope["SCALARS"], np.float32), np.ones(8), np.ones(3), one[3], one[3]),
        one[2],
        one[3],
        1,
        np.zeros((0, 0)),
    )
    (assembly,) = update_one.inspect_asm().values()
    packed = [line for line in assembly.splitlines() if "ymm" in line or "zmm" in line]
    for instruction in instructions:
        assert any(instruction in line for line in packed), instruction


def test_a_rule_that_numba_cannot_compile_raises_an_error_of_one_line(tmp_path: Path) -> None:
    rules = tmp_path / "mine.py"
    rules.write_text(RULE.replace("return w - FACTOR * lr * g", "return abs(w, g)"))
    with pytest.raises(ValueError, match=r"^method: the rules of 'mine' do not compile: .*$"):
        learn_update(rules)


class Lion(torch.optim.Optimizer):
    """The example's rule in PyTorch."""

    def __init__(self, parameters, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p -= group["lr"] * (0.9 * m + 0.1 * p.grad).sign()
                m.mul_(0.99).add_(p.grad, alpha=0.01)


def test_the_example_rule_equals_the_pytorch_optimizer() -> None:
    settings = resolve(
        Config(
            "input-permuted-mnist", "lion+wc", lr=0.01, kappa=0.8, hidden=(9, 5), dtype="float64", rules=str(EXAMPLE)
        )
    )
    model = mlp(DATA.inputs.shape[1], (9, 5), DATA.classes, dtype=torch.float64)
    optimizer = Lion(model.parameters(), lr=0.01)
    wc.clip_weights(optimizer, model, kappa=0.8, track_clipped=True)
    task = make_task("inputs", 0, 400, 400, 0, *DATA.inputs.shape, DATA.classes)
    expected, measured = Reference(model, optimizer, DATA).learn(task), Fused(settings, DATA).learn(task)
    assert measured == pytest.approx(expected, rel=1e-9, nan_ok=True)
    assert measured["clipped"] > 0


def test_user_defined_functions_compute_the_same_as_in_python(tmp_path: Path) -> None:
    rules = tmp_path / "mine.py"
    rules.write_text(
        RULE.replace(
            "def update", "def limited(x):\n    return max(min(x, K), -1.0) + (1 + K)\n\nK = 0.5\n\ndef update"
        ).replace("w - FACTOR * lr * g", "limited(-50.0 * w)")
    )
    settings = resolve(Config("input-permuted-mnist", "mine", hidden=(5,), rules=str(rules), dtype="float64"))
    learner = Fused(settings, DATA)
    before = learner.weights()[0]
    learner.learn(make_task("inputs", 0, 1, 1, 0, *DATA.inputs.shape, DATA.classes))
    np.testing.assert_allclose(learner.weights()[0], np.clip(-50.0 * before, -1.0, 0.5) + 1.5)


def test_imports_of_a_rule_are_part_of_its_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    rules = tmp_path / "mine.py"
    rules.write_text("from elsewhere import scaled\n" + RULE.replace("FACTOR * lr * g", "lr * scaled(g)"))
    texts = []
    for factor in ("2.0", "3.0", "2.0"):
        (tmp_path / "elsewhere.py").write_text(f"def scaled(x):\n    return {factor} * x\n")
        monkeypatch.delitem(sys.modules, "elsewhere", raising=False)
        linecache.checkcache()
        importlib.invalidate_caches()
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        config = Config("input-permuted-mnist", "mine", rules=str(rules))
        texts.append(rules_text(config.parsed_method()))
    assert texts[0] == texts[2] != texts[1]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A directory with a rule and its cached kernel, and the update made with it."""
    directory = tmp_path_factory.mktemp("compiled")
    (directory / "mine.py").write_text(RULE)
    return directory, learn_in_new_process(directory / "mine.py", directory / "cache")[0]


@pytest.mark.parametrize("ending", ["py", "nbi", "nbc"])
@pytest.mark.parametrize("content", [b"", b"nonsense"])
def test_a_damaged_cache_is_repaired(ending: str, content: bytes, compiled: tuple[Path, str], tmp_path: Path) -> None:
    """As after a power failure; each start is a separate process."""
    directory, expected = compiled
    rules, cache = directory / "mine.py", tmp_path / "cache"
    shutil.copytree(directory / "cache", cache)
    (damaged,) = cache.rglob(f"kernel_*.{ending}")
    damaged.write_bytes(content)
    assert learn_in_new_process(rules, cache)[0] == expected
    assert learn_in_new_process(rules, cache)[0] == expected


def test_a_full_disk_for_the_cache_only_costs_a_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIGHTCLIP_CACHE", str(tmp_path / "cache"))
    rules = tmp_path / "mine.py"
    rules.write_text(RULE.replace("FACTOR = 1.0", "FACTOR = 0.75"))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", full)
    assert np.abs(learn_update(rules)).max() > 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adam+wc", "adam+sp"])
def test_a_cached_kernel_gives_the_same_numbers_as_a_compiled_one(method: str, tmp_path: Path) -> None:
    script = (
        "from tiny_data import tiny_dataset\n"
        "from weightclip.lab.experiments.streaming.config import Config\n"
        "from weightclip.lab.experiments.streaming.training import run_config\n"
        f"config = Config('input-permuted-mnist', {method!r}, steps=200, period=50, hidden=(20, 10))\n"
        "print(run_config(config, tiny_dataset()).table.write_json())\n"
    )
    environment = {**os.environ, "WEIGHTCLIP_CACHE": str(tmp_path), "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", script]
    compiled, cached = (subprocess.run(command, env=environment, check=True, capture_output=True) for _ in range(2))
    assert compiled.stdout == cached.stdout
