from weightclip.lab.experiments.streaming.config import PAPER_METHODS
from weightclip.lab.plotting.style import style_of


def test_the_color_shows_the_regularizer_and_the_line_the_optimizer() -> None:
    assert style_of("sgd+wc").color == style_of("adam+wc").color != style_of("adam+sp").color
    assert style_of("sgd").line == style_of("sgd+sp").line == "--"
    assert style_of("adam").line == style_of("adam+sp").line == "-"


def test_every_method_of_the_paper_has_a_different_style() -> None:
    assert len({(style_of(name).color, style_of(name).line) for name in PAPER_METHODS}) == len(PAPER_METHODS)
    assert len({style_of(name).label for name in PAPER_METHODS}) == len(PAPER_METHODS)


def test_methods_are_distinguishable_in_grayscale() -> None:
    assert len({(style_of(name).marker, style_of(name).line) for name in PAPER_METHODS}) == len(PAPER_METHODS)


def test_unknown_methods_have_a_style() -> None:
    assert style_of("adam+l2init+wc").label == "Adam + L2 Init + WC"
    assert style_of("lion+mine").line == "-."
