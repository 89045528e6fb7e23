import pytest

import weightclip as wc


def test_lab_is_imported_lazily() -> None:
    assert wc.lab.run is wc.lab.experiments.streaming.run is wc.lab._run.run
    assert "run" in dir(wc.lab.experiments.streaming)
    assert dir(wc.lab) == ["analysis", "data", "experiments", "load", "networks", "records", "report", "run", "sweep"]


def test_a_missing_name_raises_an_attribute_error() -> None:
    for module in (wc, wc.lab, wc.lab.experiments.streaming):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            module.nothing  # noqa: B018
