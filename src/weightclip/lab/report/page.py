"""Render a report as one self-contained HTML file."""

from __future__ import annotations

from importlib.resources import files
from itertools import count

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from weightclip._text import counted
from weightclip.lab.plotting.style import style_of
from weightclip.lab.report.charts import color_of, dashes_of, javascript
from weightclip.lab.report.content import Content
from weightclip.lab.report.provenance import packages
from weightclip.lab.text import NOTHING, TITLE

MAX_FINDINGS = 6
"""Maximum number of findings at the top of the page."""


def render(content: Content, title: str = TITLE) -> str:
    """The HTML of the page. Text from results is escaped, and the page makes no network requests."""
    environment = Environment(
        loader=PackageLoader(__package__, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        style_of=style_of,
        color_of=color_of,
        dashes_of=dashes_of,
        counted=counted,
        nothing=NOTHING,
        max_findings=MAX_FINDINGS,
    )
    return environment.get_template("page.html").render(
        content=content,
        title=title,
        packages=packages(content.software),
        next_number=count(1).__next__,
        # Trusted content of this package and of Vega, in elements whose content is not escaped.
        css=Markup((files(__package__) / "page.css").read_text(encoding="utf-8")),
        javascript=Markup(javascript()),
    )
