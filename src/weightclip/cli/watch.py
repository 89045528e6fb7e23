"""`weightclip watch`: a video of a policy that was learned, or is being learned."""

from __future__ import annotations

import argparse
from pathlib import Path

from weightclip.cli.arguments import count, seeds


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "watch",
        help="make a video of a policy",
        description="Make a video of an episode with the policy of a run, the last one that it saved.",
        epilog="""examples:
  weightclip watch results/policy-collapse/Ant-v4/adam+wc/lr0.0003_kappa5_seed0
  weightclip watch results/policy-collapse/Ant-v4/adam+wc/lr0.0003_kappa5_seed0 -o ant.gif --steps 200 --noise
""",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a record's path, or the beginning of it")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="an .mp4 or .gif (default: beside the record)")
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help="of the episode (default: 0)")
    parser.add_argument("--steps", type=count, default=1000, metavar="N", help="at most so many (default: 1000)")
    parser.add_argument("--noise", action="store_true", help="act as in training, not by the mean action")
    parser.set_defaults(action=_watch)


def _seed(text: str) -> int:
    (seed,) = seeds(text)[:1]
    return seed


def _watch(arguments: argparse.Namespace) -> int:
    out: Path | None = arguments.out
    if out is not None and out.suffix not in (".mp4", ".gif"):
        raise ValueError(f"--out: got {str(out)!r}, expected a file that ends in .mp4 or .gif")
    from weightclip.lab.policy.watching import find_policy, play, write_video

    saved = find_policy(arguments.run)
    episode = play(saved, arguments.seed, arguments.noise, arguments.steps)
    out = out or saved.path.with_name(saved.path.name.partition(".parquet")[0].partition(".checkpoint")[0] + ".mp4")
    write_video(episode, out)
    print(f"policy: {saved.path}")
    print(f"return {episode.value:,.0f} in {len(episode.frames) - 1:,} steps: {out}")
    return 0
