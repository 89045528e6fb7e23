import pytest

from weightclip.lab.methods import split_method


def test_a_name_is_split_into_its_parts() -> None:
    assert split_method("adamw") == ("adamw", ())
    assert split_method("sgd+l2init+wc") == ("sgd", ("l2init", "wc"))
    with pytest.raises(ValueError, match=r"method: got 'adma', .*did you mean 'adam"):
        split_method("adma")
