"""`weightclip run`: one method on one problem, for one or more seeds."""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightclip.cli.arguments import (
    STOPPED,
    add_config,
    add_output,
    add_seeds,
    given,
    import_torch,
    live_from,
    pointing_to_help,
    problem_command,
)
from weightclip.lab.experiment import Experiment, summarize
from weightclip.lab.registry import experiment_of

if TYPE_CHECKING:
    from weightclip.lab.records.record import Record


_DESCRIPTION = """\
Run a method on a problem. Options that are not given take the paper's values,
unless another variant or scale is chosen. An interrupted run resumes; a
finished one is not run again."""


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    return problem_command("run", _DESCRIPTION, _add_common, _add_options)


def _add_common(parser: argparse.ArgumentParser) -> None:
    output = add_output(parser)
    output.add_argument("--overwrite", action="store_true", help="rerun finished runs")


def _add_options(
    parser: argparse.ArgumentParser, experiment: Experiment[Any], defaults: Mapping[str, Any] | None
) -> None:
    add_config(parser, experiment.config, ("problem", "seed", "kappa_rule"), defaults)
    add_seeds(parser, "seed 0")
    _add_common(parser)
    parser.set_defaults(action=_run)


def _run(arguments: argparse.Namespace) -> int:
    # A mistake in the configuration is reported before anything heavy is imported or any data is fetched.
    experiment = experiment_of(arguments.problem)
    settings = given(arguments, experiment.config)
    seeds = arguments.seeds or [0]
    with pointing_to_help("run", arguments.problem):
        configs = [experiment.configure(arguments.problem, {**settings, "seed": seed}) for seed in seeds]
    live = live_from(arguments)
    import_torch()

    from weightclip.lab.records.store import record_path
    from weightclip.lab.running import run_configs

    try:
        found = run_configs(
            experiment,
            arguments.problem,
            configs,
            out=arguments.out,
            data_dir=arguments.data_dir,
            overwrite=arguments.overwrite,
            live=live,
        )
    except KeyboardInterrupt:
        again = "the same command without --overwrite" if arguments.overwrite else "the same command"
        print(f"stopped; {again} resumes from the last checkpoint, if there is one")
        return STOPPED
    paths = [record_path(arguments.out, run.relative_path, run.identity) for run in found.runs]
    _summarise(experiment, found.records, paths)  # the data is released by now: drawing takes memory as well
    return 0


def _summarise(experiment: Experiment[Any], records: Sequence[Record], paths: Sequence[Path]) -> None:
    """Print the scores and the records' paths, and draw the picture."""
    from weightclip.lab.plotting.panels import draw_records

    for record, path in zip(records, paths, strict=True):
        print(f"seed {record.config['seed']}: {summarize(experiment.schema, [record.table])}; {record.seconds:.1f} s")
        print(f"  {path}")
    if len(records) > 1:
        print(f"mean of {len(records)} seeds: {summarize(experiment.schema, [record.table for record in records])}")
    picture = _picture(paths)
    draw_records(records, picture)
    if picture.exists():  # not every experiment draws one
        print(f"picture: {picture}")


def _picture(records: Sequence[Path]) -> Path:
    """Of one record, beside it; of several that differ in their seeds alone, under a name of their own."""
    if len(records) == 1:
        return records[0].with_suffix(".png")
    together = hashlib.sha256("".join(path.name for path in records).encode()).hexdigest()[:12]
    without = re.sub(r"seed\d+_[0-9a-f]+\.parquet$", "", records[0].name)
    return records[0].with_name(f"{without}{len(records)}seeds_{together}.png")
