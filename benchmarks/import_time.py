"""The time that `import weightclip` adds to `import torch`, in a new process each time.

python benchmarks/import_time.py [--quick]
"""

import argparse
import subprocess
import sys
from statistics import median

from timing import deadline, leave, print_claim, rounds, time_limit, without_warm_up

CODE = """
import time
times = [time.perf_counter()]
import torch
times.append(time.perf_counter())
import weightclip
times.append(time.perf_counter())
print(times[1] - times[0], times[2] - times[1])
"""


def main(quick: bool) -> None:
    torch_times: list[float] = []
    own_times: list[float] = []
    with time_limit(quick):
        for _ in rounds(5 if quick else 15, deadline(quick)):
            result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
            for times, seconds in zip((torch_times, own_times), map(float, result.stdout.split()), strict=True):
                times.append(seconds)
    if not own_times:
        print_claim("import", None)
        return
    plain, extra = (median(without_warm_up(times)) for times in (torch_times, own_times))
    print(f"import torch: {plain * 1e3:.0f} ms; import torch, weightclip: {(plain + extra) * 1e3:.0f} ms")
    print(f"import weightclip after torch: {extra * 1e3:.1f} ms")
    print_claim("import", 1 + extra / plain, digits=4)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, within 45 s")
    arguments = parser.parse_args()
    main(arguments.quick)
    leave(arguments.quick)
