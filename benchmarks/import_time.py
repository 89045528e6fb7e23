"""What `import weightclip` adds to `import torch`, in fresh processes, alternating.

python benchmarks/import_time.py [--quick]
"""

import argparse
import statistics
import subprocess
import sys

CODE = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"


def seconds(imports: str) -> float:
    result = subprocess.run([sys.executable, "-c", CODE.format(imports)], capture_output=True, text=True, check=True)
    return float(result.stdout)


def main(rounds: int) -> None:
    without, together = [], []
    for _ in range(rounds):
        without.append(seconds("import torch"))
        together.append(seconds("import torch, weightclip"))
    plain, both = statistics.median(without[1:]), statistics.median(together[1:])
    extra = statistics.median(
        [seconds("import torch; t = time.perf_counter(); import weightclip") for _ in range(rounds)]
    )
    print(f"import torch: {plain * 1e3:.0f} ms; import torch, weightclip: {both * 1e3:.0f} ms")
    print(f"import weightclip after torch: {extra * 1e3:.1f} ms")
    print(f"import: {1 + extra / plain:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under 45 seconds")
    main(3 if parser.parse_args().quick else 9)
