"""The report: one HTML file with runs, curves, best settings and failures. It requires the `report` extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightclip._lazy import lazily

if TYPE_CHECKING:
    from weightclip.lab.report.content import Content, gather
    from weightclip.lab.report.page import render

__all__ = ["Content", "gather", "render"]
__getattr__, __dir__ = lazily(__name__, {"Content": "content", "gather": "content", "render": "page"})
