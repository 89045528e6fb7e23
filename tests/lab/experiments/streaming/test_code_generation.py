"""Translation of a rule's function."""

import math

import pytest

from weightclip.lab.experiments.streaming.code_generation import Names, translate
from weightclip.lab.experiments.streaming.rules import OPTIMIZERS, Rule, sqrt

RATE = 0.25


def translate_update(update, state: tuple[str, ...] = ()) -> tuple[str, list[str]]:
    """Return the source of the kernel's function and the hoisted expressions."""
    rule = Rule("mine", update=update, state=state)
    names = Names(tuple(rule.settings))
    source = translate(update, rule, names, "update").source
    return source.partition("\n")[2].replace("    ", ""), list(names.uniform)


def test_uniform_expressions_are_hoisted() -> None:
    rule = OPTIMIZERS["adam"]
    names = Names(tuple(rule.settings))
    text = translate(rule.update, rule, names, "update")
    assert text.reads == ("w", "g", "m", "v", *(f"c_{i}" for i in range(7)))
    assert "settings[0] / (1 - settings[1] ** step)" in names.uniform
    assert "step" not in text.source


def halved(w, g, lr):
    half = lr / 2
    return w - half * g


def changed_in_a_branch(w, g, lr):
    size = lr
    if g > 0:
        size = 2 * lr
    return w - size * g


def squared(w, g, lr):
    w -= lr * g**2
    return w


def with_globals(w, g):
    return w - RATE * math.sqrt(abs(g)) * sqrt(abs(w))


def limited(x, low):
    return max(min(x, 1 + RATE), low) if x > -1.0 else low


def with_a_helper(w, g, lr):
    return limited(w - lr * g, -1.0)


def test_names_of_uniform_expressions_are_uniform() -> None:
    assert translate_update(halved) == ("return w - c_0 * g", ["settings[0] / 2"])


def test_a_name_assigned_in_a_branch_is_not_uniform() -> None:
    source, uniform = translate_update(changed_in_a_branch)
    assert source == "size = c_0\nif g > F(0):\nsize = c_1\nreturn w - size * g"
    assert uniform == ["settings[0]", "2 * settings[0]"]


def test_a_square_is_a_product() -> None:
    assert translate_update(squared)[0] == "w = w - c_0 * (g * g)\nreturn w"


def test_global_numbers_and_math_functions() -> None:
    assert translate_update(with_globals) == ("return w - c_0 * sqrt(abs(g)) * sqrt(abs(w))", ["0.25"])


def test_user_defined_functions() -> None:
    rule = Rule("mine", update=with_a_helper)
    names = Names(tuple(rule.settings))
    assert "own_limited(w - c_0 * g, c_1)" in translate(with_a_helper, rule, names, "update").source
    assert list(names.helpers.values()) == [
        "def own_limited(x, low):\n    return max(min(x, F(1 + 0.25)), low) if x > F(-1.0) else low"
    ]


def too_few(w, g, m, lr):
    return w - lr * g


def no_return(w, g, lr):
    w = w - lr * g


def with_a_loop(w, g, lr):
    for _ in range(3):
        w = w - lr * g
    return w


def with_an_unknown_name(w, g, lr):
    return w - lr * unknown_thing * g  # noqa: F821


def with_an_unknown_function(w, g, lr):
    return w - lr * math.erf(g)


def with_a_taken_name(w, g, lr):
    F = lr * g
    return w - F


@pytest.mark.parametrize(
    ("update", "state", "message"),
    [
        (too_few, ("m",), "rule mine: too_few returns 1 value, expected w, m"),
        (no_return, (), "rule mine: no_return returns nothing, expected w"),
        (with_a_loop, (), "rule mine: 'for _ in range"),
        (with_an_unknown_name, (), "rule mine: 'unknown_thing' in with_an_unknown_name is not supported"),
        (with_an_unknown_function, (), "rule mine: 'math.erf' in with_an_unknown_function is not supported"),
        (with_a_taken_name, (), "rule mine: with_a_taken_name has a variable 'F', expected another name"),
        (lambda w, g: w, (), "expected a function written with def"),
    ],
)
def test_unsupported_code_is_rejected(update, state: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        translate_update(update, state)
