"""Kernels: modules that numba compiles once and caches under the hash of their source."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from weightclip.lab.files import write_whole

_TEMPORARY = "weightclip-kernel-"
"""Prefix of directories that kernels are written to if their cache directory is not writable."""


def load_kernel(source: str, directory: Path) -> ModuleType:
    """The kernel with this source. `learn` is compiled at the first call unless it is cached in `directory`."""
    import numba
    from llvmlite import binding  # type: ignore[import-untyped]

    # Numba compiles for the CPU: machines that share a cache may have different ones.
    cpu = numba.config.CPU_NAME or binding.get_host_cpu_name()  # type: ignore[attr-defined]
    features = numba.config.CPU_FEATURES  # type: ignore[attr-defined]
    features = binding.get_host_cpu_features().flatten() if features is None else features
    machine = f"{numba.__version__} {sys.version} {platform.machine()} {cpu} {features}"
    name = f"kernel_{hashlib.sha256(f'{machine}{source}'.encode()).hexdigest()[:24]}"
    if name in sys.modules:
        return sys.modules[name]
    try:
        path = _write_source(source, directory / f"{name}.py")
    except OSError:  # without a writable cache, the kernel is recompiled
        path = _write_source(source, Path(tempfile.mkdtemp(prefix=_TEMPORARY)) / f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module  # numba looks up the module of a cached function there
    return module


def is_cacheable(kernel: ModuleType) -> bool:
    """Whether later processes find the compiled code of a kernel; not if `load_kernel` used a temporary directory."""
    return not Path(str(kernel.__file__)).parent.name.startswith(_TEMPORARY)


def is_compiled(kernel: ModuleType) -> bool:
    """Whether `learn`, which takes most of the time to compile, is compiled, in this process or in the cache."""
    if not hasattr(kernel.learn, "signatures"):  # NUMBA_DISABLE_JIT
        return True
    return bool(kernel.learn.signatures) or any(_cached(kernel, "learn-*.nbi"))


def _cached(kernel: ModuleType, pattern: str) -> Iterator[Path]:
    """The files of a kernel in numba's cache: `FUNCTION-*.nbi` and `FUNCTION-*.nbc`."""
    return Path(kernel.learn.stats.cache_path).glob(f"{kernel.__name__}.{pattern}")


def _write_source(source: str, path: Path) -> Path:
    """Write the source unless the file exists: numba's cache depends on its modification time."""
    content = source.encode()
    if not path.is_file() or path.read_bytes() != content:
        write_whole(path, content)
    return path


def call(kernel: ModuleType, *arguments: Any, function: str = "learn") -> None:
    """Call `kernel.learn(*arguments)`, or another function; recompile it if the cache is damaged or not writable."""
    compiled = getattr(kernel, function)
    try:
        compiled(*arguments)
    except Exception as error:
        import numba

        if isinstance(error, numba.core.errors.NumbaError):
            raise
        # Compiled code raises nothing, so the error comes from numba's cache, which is accessed before the call.
        for damaged in _cached(kernel, "*.nb[ci]"):
            with suppress(OSError):
                damaged.unlink()
        compiled = numba.jit(**compiled.targetoptions)(compiled.py_func)  # the same options, without a cache
        setattr(kernel, function, compiled)
        compiled(*arguments)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Matrix products in compiled code use one thread: more are slower on small matrices and may round differently."""
    library = _openblas()
    if library is None:
        yield
        return
    before = library.scipy_openblas_get_num_threads()
    library.scipy_openblas_set_num_threads(1)
    try:
        yield
    finally:
        library.scipy_openblas_set_num_threads(before)


@cache
def _openblas() -> ctypes.CDLL | None:
    """The OpenBLAS of SciPy's wheels, which numba calls; None if SciPy has another BLAS."""
    import scipy  # type: ignore[import-untyped]

    root = Path(scipy.__file__).parent
    for path in (*root.with_name("scipy.libs").glob("libscipy_openblas*"), *root.glob(".dylibs/libscipy_openblas*")):
        with suppress(OSError):
            library = ctypes.CDLL(str(path))
            if hasattr(library, "scipy_openblas_set_num_threads"):
                return library
    return None
