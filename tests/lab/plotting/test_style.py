from weightclip.lab.experiments.streaming.config import PAPER_METHODS
from weightclip.lab.plotting.style import style_of


def test_colour_is_the_remedy_and_the_line_the_optimizer() -> None:
    assert style_of("sgd+wc").color == style_of("adam+wc").color != style_of("adam+sp").color
    assert style_of("sgd").line == style_of("sgd+sp").line == "--"
    assert style_of("adam").line == style_of("adam+sp").line == "-"


def test_every_method_of_the_paper_looks_different() -> None:
    assert len({(style_of(name).color, style_of(name).line) for name in PAPER_METHODS}) == len(PAPER_METHODS)
    assert len({style_of(name).label for name in PAPER_METHODS}) == len(PAPER_METHODS)


def test_methods_can_be_told_apart_in_grey() -> None:
    assert len({(style_of(name).marker, style_of(name).line) for name in PAPER_METHODS}) == len(PAPER_METHODS)


def test_methods_that_nobody_drew_before_have_a_style_too() -> None:
    assert style_of("adam+l2init+wc").label == "Adam + L2 Init + WC"
    assert style_of("lion+mine").line == "-."
