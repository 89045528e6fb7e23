"""The commands that make the paper's figure and tables on warm starting."""

from __future__ import annotations

from weightclip.lab.paper import Reproduction

_SWEEP = "sweep warm-start --variant paper {settings} --seeds {{seeds}} --out {{results}}"
_BEST, _SEARCH = _SWEEP.format(settings="--best"), _SWEEP.format(settings="--grid paper")

REPRODUCTIONS = (
    Reproduction("figure 2", (_BEST, "figure warm-start {results} -o {figures}"), seeds=10, length="epochs"),
    Reproduction("table 1", (_SEARCH,), seeds=10, part="warm starting", length="epochs"),
    Reproduction("table 2", (_SEARCH, "best {results}"), seeds=10, part="warm starting", length="epochs"),
)
