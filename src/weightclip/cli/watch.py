"""`weightclip watch`: record a video of a trained policy, or of one in training."""

from __future__ import annotations

import argparse
from pathlib import Path

from weightclip._text import counted
from weightclip._validation import check_count
from weightclip.cli.arguments import PROGRAM, Parser, count, import_torch, seed


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    parser = Parser(
        prog=f"{PROGRAM} watch",
        description="Record a video of one episode with the last saved policy of a run.",
        epilog="""examples:
  weightclip watch results/policy-collapse/Ant-v4/adam+wc/lr0.0003_kappa5_seed0
  weightclip watch results/policy-collapse/Ant-v4/adam+wc/lr0.0003_kappa5_seed0 -o ant.gif --steps 200 --noise
""",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="path of a record, or a prefix of it")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="output, .mp4 or .gif (default: next to the record)"
    )
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="seed of the episode (default: 0)")
    parser.add_argument(
        "--steps", type=count, default=1000, metavar="N", help="maximum number of steps (default: 1000)"
    )
    parser.add_argument("--noise", action="store_true", help="sample actions as in training (default: mean actions)")
    parser.set_defaults(action=_watch)
    return parser


def _watch(arguments: argparse.Namespace) -> int:
    out: Path | None = arguments.out
    check_count("--steps", arguments.steps)
    if out is not None and out.suffix.lower() not in (".mp4", ".gif"):
        raise ValueError(f"--out: got {str(out)!r}, expected a file that ends in .mp4 or .gif")
    import_torch()
    from weightclip.lab.experiments.ppo.video import find_policy, play, write_video

    saved = find_policy(arguments.run)
    out = out or saved.path.with_name(saved.path.name.partition(".parquet")[0].partition(".checkpoint")[0] + ".mp4")
    steps, value = write_video(play(saved, arguments.seed, arguments.noise, arguments.steps), out)
    print(f"policy: {saved.path}")
    print(f"return {value:,.0f} in {counted(steps, 'step')}: {out}")
    return 0
