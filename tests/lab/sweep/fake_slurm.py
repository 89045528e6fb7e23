"""A local substitute for the Slurm commands that submitit uses.

`install(folder)` creates `sbatch`, `srun`, `sacct` and `scancel` in a folder. The folder also stores their state: the
script of each job, and the state and process group of each task.
"""

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

COMMANDS = ("sbatch", "srun", "sacct", "scancel")


def install(folder: Path) -> None:
    for command in COMMANDS:
        path = folder / command
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {folder} {command} "$@"\n')
        path.chmod(0o755)


def sbatch(folder: Path, script: str) -> None:
    job = str(1 + len(list(folder.glob("*.sbatch"))))
    text = Path(script).read_text()
    (folder / f"{job}.sbatch").write_text(text)
    subprocess.Popen(
        [sys.executable, __file__, str(folder), "run", job],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    print(f"Submitted batch job {job}")


def run(folder: Path, job: str) -> None:
    """Run the tasks of a job with the parallelism of the array."""
    array = re.search(r"--array='?0-(\d+)%(\d+)", (folder / f"{job}.sbatch").read_text())
    last, parallel = (int(array[1]), int(array[2])) if array else (0, 1)
    with ThreadPoolExecutor(parallel) as pool:
        list(pool.map(lambda task: _run_task(folder, job, task if array else None), range(last + 1)))


def _run_task(folder: Path, job: str, task: int | None) -> None:
    name = job if task is None else f"{job}_{task}"
    if (folder / f"{job}.canceled").exists():
        return
    variables = {"SLURM_JOB_ID": job, "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_PROCID": "0"}
    if task is not None:
        variables |= {"SLURM_ARRAY_JOB_ID": job, "SLURM_ARRAY_TASK_ID": str(task)}
    process = subprocess.Popen(
        ["bash", str(folder / f"{job}.sbatch")], env={**os.environ, **variables}, start_new_session=True
    )
    (folder / f"{name}.group").write_text(str(process.pid))
    (folder / f"{name}.state").write_text("RUNNING")
    code = process.wait()
    (folder / f"{name}.state").write_text("COMPLETED" if code == 0 else "NODE_FAIL")


def srun(folder: Path, *words: str) -> None:
    rest = list(words)
    files: dict[str, str] = {}
    while rest[0].startswith("--"):
        option = rest.pop(0)
        if option != "--unbuffered":
            files[option] = rest.pop(0)
    for option, number in (("--output", 1), ("--error", 2)):
        path = files[option].replace("%j", os.environ["SLURM_JOB_ID"]).replace("%t", "0")
        path = path.replace("%A", os.environ.get("SLURM_ARRAY_JOB_ID", ""))
        path = path.replace("%a", os.environ.get("SLURM_ARRAY_TASK_ID", ""))
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.execvp(rest[0], rest)


def sacct(folder: Path, *words: str) -> None:
    print("JobID|State|NodeList")
    for path in sorted(folder.glob("*.state")):
        print(f"{path.stem}|{path.read_text()}|here")


def scancel(folder: Path, *jobs: str) -> None:
    for job in jobs:
        (folder / f"{job}.canceled").touch()
        for path in [*folder.glob(f"{job}.group"), *folder.glob(f"{job}_*.group")]:
            with suppress(ProcessLookupError):
                os.killpg(int(path.read_text()), signal.SIGKILL)


if __name__ == "__main__":
    folder, command, *words = sys.argv[1:]
    {"sbatch": sbatch, "run": run, "srun": srun, "sacct": sacct, "scancel": scancel}[command](Path(folder), *words)
