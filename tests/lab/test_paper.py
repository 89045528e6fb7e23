from collections.abc import Mapping
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from weightclip import cli
from weightclip.lab import paper
from weightclip.lab.paper import ITEMS, Reproduction, all_figures, find_figure, find_item, reproductions


def test_the_paper_has_fifteen_figures_and_two_tables() -> None:
    assert list(ITEMS) == [*(f"figure {number}" for number in range(1, 16)), "table 1", "table 2"]


def test_figures_have_their_number_in_the_paper_or_none() -> None:
    figures = list(all_figures())
    numbers = [figure.number for figure in figures if figure.number]
    assert {*numbers} >= {str(number) for number in range(1, 16)}
    assert len({*numbers}) == len(numbers)
    assert all(f"figure {number}" in ITEMS for number in numbers)
    assert len({figure.name for figure in figures}) == len(figures)


def test_a_figure_is_found_by_name_and_by_number() -> None:
    assert find_figure("3") is find_figure("streaming")
    assert find_figure("diagram").number == "1"
    with pytest.raises(ValueError, match="did you mean 'streaming'"):
        find_figure("streming")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        *((name, ("figure 3", "")) for name in ("figure 3", "Figure 3", " 3 ")),
        *((name, ("figure 3", "(a)")) for name in ("figure 3(a)", "3a", "3 (a)", "Figure 3a")),
        ("table 2 mujoco", ("table 2", "MuJoCo")),
        ("table 1", ("table 1", "")),
    ],
)
def test_an_item_or_a_part_is_found_by_common_spellings(name: str, found: tuple[str, str]) -> None:
    assert find_item(name) == found


def test_an_unknown_item_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"item: got 'tabel 1', expected one of figure 1, .*did you mean 'table 1'"):
        find_item("tabel 1")


def commands() -> list[list[str]]:
    return [
        words
        for parts in reproductions().values()
        for one in parts.values()
        if one is not None
        for words in one.filled()
    ]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_can_be_parsed(words: list[str]) -> None:
    cli._parser().parse_args(words)


def test_every_figure_of_the_paper_has_a_reproduction() -> None:
    for figure in all_figures():
        if figure.number:
            for reproduction in reproductions()[f"figure {figure.number}"].values():
                assert reproduction is not None
                assert reproduction.filled()[-1][:2] == ["figure", figure.name]


def test_seeds_and_directories_can_be_chosen() -> None:
    reproduction = Reproduction(
        "figure 3", ("sweep x --seeds {seeds} --out {results}", "figure y {results} -o {figures}"), 30
    )
    assert reproduction.filled() == [
        ["sweep", "x", "--seeds", "30", "--out", "results"],
        ["figure", "y", "results", "-o", "figures"],
    ]
    assert reproduction.filled("0-3", "my results", "out")[1] == ["figure", "y", "my results", "-o", "out"]
    assert reproduction.filled("0-3")[0][3] == "0-3"


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (Reproduction("figure 33", ()), "mine: item: got 'figure 33', expected one of"),
        (Reproduction("table 1", (), part="Atarri"), "mine: part: got 'Atarri', .*did you mean 'Atari'"),
    ],
)
def test_reproducing_an_item_missing_from_the_paper_raises_an_error(
    one: Reproduction, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Custom(SimpleNamespace):
        name = "mine"

        def presets(self) -> Mapping[str, Any]:
            return {"reproductions": [asdict(one)]}

    monkeypatch.setattr(paper, "experiments", lambda: {"mine": Custom()})
    with pytest.raises(ValueError, match=message):
        reproductions()
