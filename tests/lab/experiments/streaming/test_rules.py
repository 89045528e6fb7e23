from pathlib import Path

import pytest

from weightclip.lab.experiments.streaming.rules import OPTIMIZERS, REGULARIZERS, Rule, load_rules, sign

EXAMPLE = Path(__file__).parents[4] / "examples" / "lion_rule.py"


def step(w: float, g: float, lr: float = 0.1) -> float:
    return w - lr * g


def keep(w: float) -> float:
    return w


def no_number(w: float, g: float, lr: float | None = None) -> float:
    return w


def several(w: float, g: float, *rest: float) -> float:
    return w


def test_all_other_arguments_are_settings() -> None:
    assert OPTIMIZERS["sgd"].settings == {"lr": None}
    assert OPTIMIZERS["adam"].settings == {"lr": None, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    assert OPTIMIZERS["madam"].settings == {"lr": None, "beta": 0.999, "max_update": 10.0, "kappa": None}
    assert REGULARIZERS["wc"]["paper"].settings == {"kappa": None}  # through `box`, which is kappa s
    assert REGULARIZERS["sp"]["paper"].settings == {"decay": None, "lr": None, "sigma": None}
    assert Rule("step", update=step).settings == {"lr": 0.1}


def test_rules_are_plain_functions() -> None:
    w, m, v = OPTIMIZERS["adam"].update(1.0, 2.0, 0.0, 0.0, lr=0.1, step=1)
    assert (w, m, v) == pytest.approx((0.9, 0.2, 0.004))
    assert [sign(x) for x in (-2.0, 0.0, 3.0)] == [-1, 0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "rule mine: got no function"),
        ({"update": step, "state": ("w",)}, "rule mine: got the state 'w'"),
        ({"after": keep, "state": ("m",)}, "rule mine: got a state, expected one only together with an update"),
        ({"after": keep, "snapshot": "never"}, "rule mine: got the snapshot 'never'"),
        ({"update": 3}, "rule mine: got 3 as update, expected a function"),
        ({"update": step, "state": "m"}, "rule mine: got the state 'm', expected a tuple"),
        ({"update": no_number}, "rule mine: got None as the default of lr, expected a number"),
        ({"update": several}, r"rule mine: got the argument '\*rest"),
    ],
)
def test_an_invalid_rule_raises_an_error(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rule("mine", **arguments)


def test_a_file_of_rules() -> None:
    rules = load_rules(EXAMPLE)
    assert rules["lion"].state == ("m",)
    assert rules["lion"].settings == {"lr": 1e-5, "beta1": 0.9, "beta2": 0.99}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "expected a Python file"),
        ("x = 1\n", "defines no Rule"),
        ("def update(:\n", "mine.py, line 1: SyntaxError"),
        ("import nothing_like_it\n", "mine.py, line 1: ModuleNotFoundError"),
        ("import sys\nsys.exit(3)\n", "mine.py, line 2: SystemExit"),
        (
            "from weightclip.lab.experiments.streaming import Rule\nRule('a+b')\n",
            "mine.py, line 2: ValueError: rule: got the name 'a[+]b'",
        ),
        (
            "from weightclip.lab.experiments.streaming import Rule\n"
            "def f(w, g):\n    return w\nA = Rule('adam', update=f)\n",
            "mine.py, line 2: got the name 'adam', which is built in",
        ),
    ],
)
def test_a_file_without_rules_raises_an_error(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_rules(path)


def test_a_binary_file_raises_an_error(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_bytes(b"x = '\xff'\n")
    with pytest.raises(ValueError, match=r"mine.py', which is not UTF-8 text"):
        load_rules(path)
