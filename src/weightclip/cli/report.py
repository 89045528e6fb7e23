"""`weightclip report`: summarize results in one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path

from weightclip.cli.arguments import PROGRAM, Parser
from weightclip.cli.results import add_criterion, add_results, check_results
from weightclip.lab.text import TITLE

ENDINGS = (".html", ".htm")


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    parser = Parser(
        prog=f"{PROGRAM} report",
        usage="weightclip report RESULTS... [-o FILE] [options]",
        description="Write a report of results: runs, curves, best settings, sensitivities and failures.\n"
        "The report is one HTML file with interactive charts. It needs no network.",
        epilog="examples:\n"
        "  weightclip report results\n"
        "  weightclip report results -o report.html --where steps=1M --title 'Streaming learning'\n",
    )
    add_results(parser)
    add_criterion(parser)
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("report.html"), metavar="FILE", help="output file (default: report.html)"
    )
    parser.add_argument("--title", default=TITLE, metavar="TEXT", help=f"title of the report (default: {TITLE})")
    parser.set_defaults(action=_report)
    return parser


def _report(arguments: argparse.Namespace) -> int:
    if arguments.out.suffix.lower() not in ENDINGS:
        raise ValueError(f"-o: got {str(arguments.out)!r}, expected a file that ends in {' or '.join(ENDINGS)}")
    check_results(arguments)
    from weightclip.lab.data.download import in_megabytes
    from weightclip.lab.files import write_whole
    from weightclip.lab.paper import all_figures

    try:
        from weightclip.lab.report.content import gather
        from weightclip.lab.report.page import render
    except ImportError as error:
        raise ValueError(f'this command requires {error.name}: pip install "{PROGRAM}[report]"') from error
    content = gather(
        *arguments.results, chosen=dict(arguments.where), criterion=arguments.criterion, figures=all_figures()
    )
    for note in content.notes:
        print(note)
    page = render(content, arguments.title).encode()
    write_whole(arguments.out, page)
    print(f"{arguments.out}: {content.summary} ({in_megabytes(len(page))})")
    return 0
