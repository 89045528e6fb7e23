"""A mkdocs hook that generates the reference of commands and metrics from the parsers and schemas."""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any

COMMANDS = ("sweep", "status", "best", "figure", "report", "reproduce", "watch", "data")
EXPERIMENTS = {
    "Streaming learning": "input-permuted-mnist",
    "Warm starting": "warm-start",
    "Policy collapse": "policy-collapse",
    "Large replay ratios": "replay-ratio",
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marks in a page by generated text."""
    for mark, generate in (("<!-- commands -->", commands), ("<!-- metrics -->", metrics)):
        if mark in markdown:
            markdown = markdown.replace(mark, generate())
    return markdown


def commands() -> str:
    """The help of every command; that of `run` for each experiment."""
    runs = [f"run {problem}" for problem in EXPERIMENTS.values()]
    return "\n".join(f"## {command}\n\n```\n{help_text(command)}```\n" for command in (*runs, *COMMANDS))


def help_text(command: str) -> str:
    """The output of `weightclip COMMAND --help`."""
    from weightclip.cli import main

    output, columns = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
            main([*command.split(), "--help"])
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
    return output.getvalue()


def metrics() -> str:
    """A table of columns for each experiment."""
    from weightclip.lab.registry import experiment_of

    sections = []
    for title, problem in EXPERIMENTS.items():
        schema = experiment_of(problem).schema
        rows = [
            f"| `{one.name}` | {one.label} | {one.help.replace('|', '&#124;')} |" for one in schema.metrics.values()
        ]
        head = f"## {title}\n\nA row per {schema.x_column} of `{problem}`. Settings are selected by `{schema.score}`.\n"
        sections.append("\n".join([head, "| column | label | definition |", "|---|---|---|", *rows, ""]))
    return "\n".join(sections)
