"""`weightclip run`: run one method on one problem for one or more seeds."""

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
    loggers_from,
    pointing_to_help,
    problem_command,
)
from weightclip.lab.experiment import Experiment, summarize
from weightclip.lab.registry import experiment_of

if TYPE_CHECKING:
    from weightclip.lab.records.record import Record


_DESCRIPTION = """\
Run a method on a problem. The help of a problem shows the defaults, which are
the paper's values if its variant and scale are the paper's; warm-start's default
variant is not. Interrupted runs resume; finished runs are not repeated."""


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    return problem_command("run", _DESCRIPTION, _add_common, _add_options)


def _add_common(parser: argparse.ArgumentParser) -> None:
    output = add_output(parser)
    output.add_argument("--overwrite", action="store_true", help="repeat finished runs")


def _add_options(
    parser: argparse.ArgumentParser, experiment: Experiment[Any], defaults: Mapping[str, Any] | None
) -> None:
    add_config(parser, experiment.config, ("problem", "seed", "kappa_rule"), defaults)
    add_seeds(parser, "seed 0")
    _add_common(parser)
    parser.set_defaults(action=_run)


def _run(arguments: argparse.Namespace) -> int:
    # Report a wrong configuration before importing PyTorch or downloading data.
    experiment = experiment_of(arguments.problem)
    settings = given(arguments, experiment.config)
    seeds = arguments.seeds or [0]
    with pointing_to_help("run", arguments.problem):
        config = experiment.configure(arguments.problem, {**settings, "seed": seeds[0]})
    loggers = loggers_from(arguments)
    import_torch()

    from weightclip.lab._run import run_configs
    from weightclip.lab.records.store import record_path
    from weightclip.lab.sweep.plan import with_seeds

    try:
        result = run_configs(
            experiment,
            with_seeds(config, seeds),
            out=arguments.out,
            data_dir=arguments.data_dir,
            overwrite=arguments.overwrite,
            loggers=loggers,
        )
    except KeyboardInterrupt:
        command = "the same command without --overwrite" if arguments.overwrite else "the same command"
        print(f"stopped; {command} resumes from the last checkpoint, if one exists")
        return STOPPED
    paths = [record_path(arguments.out, run.relative_path, run.identity) for run in result.runs]
    _report(experiment, result.records, paths)  # drawing needs memory: the data has been released here
    return 0


def _report(experiment: Experiment[Any], records: Sequence[Record], paths: Sequence[Path]) -> None:
    """Print the results and the paths of the records, and draw them."""
    from weightclip.lab.plotting.panels import draw_records

    for record, path in zip(records, paths, strict=True):
        print(f"seed {record.config['seed']}: {summarize(experiment.schema, [record.table])}; {record.seconds:.1f} s")
        print(f"  {path}")
    if len(records) > 1:
        print(f"mean of {len(records)} seeds: {summarize(experiment.schema, [record.table for record in records])}")
    picture = _picture(paths)
    draw_records(records, picture)
    if picture.exists():  # some experiments draw none
        print(f"picture: {picture}")


def _picture(records: Sequence[Path]) -> Path:
    """The path of the picture: next to a single record, or one name for several seeds."""
    if len(records) == 1:
        return records[0].with_suffix(".png")
    digest = hashlib.sha256("".join(path.name for path in records).encode()).hexdigest()[:12]
    prefix = re.sub(r"seed\d+_[0-9a-f]+\.parquet$", "", records[0].name)
    return records[0].with_name(f"{prefix}{len(records)}seeds_{digest}.png")
