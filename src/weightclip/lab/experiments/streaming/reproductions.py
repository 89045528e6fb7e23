"""The commands that make the paper's figures and tables on streaming learning."""

from __future__ import annotations

from weightclip.lab.paper import Reproduction

INPUT_PERMUTED = ("input-permuted-mnist",)
LABEL_PERMUTED = ("label-permuted-emnist", "label-permuted-mini-imagenet")
EVERY = INPUT_PERMUTED + LABEL_PERMUTED


def _sweeps(problems: tuple[str, ...], settings: str) -> tuple[str, ...]:
    return tuple(
        f"sweep {problem} --methods all {settings} --seeds {{seeds}} --out {{results}}" for problem in problems
    )


def _figure(name: str) -> str:
    return f"figure {name} {{results}} -o {{figures}}"


REPRODUCTIONS = (
    Reproduction("figure 3", (*_sweeps(EVERY, "--best"), _figure("streaming"))),
    Reproduction("figure 4", (*_sweeps(INPUT_PERMUTED, "--best"), _figure("streaming-diagnostics"))),
    Reproduction("figure 10", (*_sweeps(LABEL_PERMUTED, "--best"), _figure("label-permuted-diagnostics"))),
    Reproduction("table 1", _sweeps(EVERY, "--grid paper"), part="streaming learning"),
    Reproduction("table 2", (*_sweeps(EVERY, "--grid paper"), "best {results}"), part="streaming learning"),
)
