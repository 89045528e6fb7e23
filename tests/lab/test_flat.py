import pytest
import torch

from weightclip.lab.flat import flatten, unflatten


def test_a_nested_state_comes_back_with_its_types() -> None:
    tree = {
        "model": {"0.weight": torch.randn(2, 3), "0.bias": torch.zeros(2, dtype=torch.float64)},
        "state": {0: {"step": 3, "v": torch.tensor(2.0)}, 12: {"rate": 0.1, "on": True}},
        "measured": {},
        "generators": {"cpu": torch.Generator().get_state()},
    }
    back = unflatten(flatten(tree))
    assert list(back) == list(tree)
    assert torch.equal(back["model"]["0.weight"], tree["model"]["0.weight"])
    assert back["model"]["0.bias"].dtype == torch.float64
    assert back["state"][0]["step"] == 3
    assert type(back["state"][0]["step"]) is int
    assert back["state"][0]["v"].shape == ()
    assert back["state"][12] == {"rate": 0.1, "on": True}
    assert back["measured"] == {}
    assert torch.equal(back["generators"]["cpu"], tree["generators"]["cpu"])


def test_what_would_have_to_be_pickled_is_refused() -> None:
    with pytest.raises(TypeError, match="a/b: got object"):
        flatten({"a": {"b": object()}})
