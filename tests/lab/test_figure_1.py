import numpy as np
import pytest

from weightclip.lab.figure_1 import EDGE, REGULARIZERS, STEPS, W_0, WEIGHTS, figure_1, steps_of


def test_clipping_moves_only_outside_weights_and_directly_to_the_edge() -> None:
    w_1, w_2 = WEIGHTS["outside"]
    assert w_1 > EDGE > abs(w_2)
    start, *later = steps_of("wc", (w_1, w_2))
    assert start == (w_1, w_2)
    np.testing.assert_allclose(later, [(EDGE, w_2)] * STEPS, rtol=1e-6)


def test_clipping_leaves_a_weight_inside_the_box() -> None:
    assert steps_of("wc", WEIGHTS["inside"]) == [WEIGHTS["inside"]] * (STEPS + 1)


@pytest.mark.parametrize(("regularizer", "goal"), [("l2", (0.0, 0.0)), ("l2init", W_0)])
@pytest.mark.parametrize("start", WEIGHTS.values(), ids=list(WEIGHTS))
def test_l2_moves_straight_to_the_origin_and_l2_init_to_the_initial_weight(
    regularizer: str, goal: tuple[float, float], start: tuple[float, float]
) -> None:
    away = np.array(steps_of(regularizer, start)) - goal
    distance = np.linalg.norm(away, axis=1)
    assert (np.diff(distance) < 0).all()
    np.testing.assert_allclose(away / distance[:, None], [away[0] / distance[0]] * (STEPS + 1), atol=1e-9)


def test_the_diagram_shows_the_steps_in_its_csv() -> None:
    drawing = figure_1()
    assert drawing.data.columns == ["regularizer", "weight", "step", "w_1", "w_2"]
    for (regularizer, weight), steps in drawing.data.group_by("regularizer", "weight"):
        assert steps.select("w_1", "w_2").rows() == steps_of(str(regularizer), WEIGHTS[str(weight)])
    assert set(drawing.data["regularizer"]) == set(REGULARIZERS)
    (axes,) = drawing.picture.axes
    words = {text.get_text() for text in axes.texts}
    assert {"clipping", "L2", "L2 Init", "$w_0$", "$w_t$", r"$[-\kappa s, \kappa s]^2$"} <= words
    assert axes.get_aspect() == 1
