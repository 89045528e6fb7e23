import subprocess
import sys

import pytest

import weightclip


def test_the_core_imports_only_torch_and_the_standard_library() -> None:
    code = (
        "import sys, torch, torch.nn.utils.prune; before = set(sys.modules); import weightclip;"
        "print(*sorted({m.partition('.')[0] for m in set(sys.modules) - before}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["weightclip"]


def test_all_public_names_exist() -> None:
    assert all(hasattr(weightclip, name) for name in weightclip.__all__)


def test_the_jax_modules_do_not_import_pytorch() -> None:
    pytest.importorskip("optax", reason="needs optax")
    code = "import sys, weightclip.optax; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


def test_the_package_does_not_import_pytorch_and_lists_its_public_names() -> None:
    code = "import sys, weightclip; print('torch' in sys.modules, *dir(weightclip))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", *weightclip.__all__]
