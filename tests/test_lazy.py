import pytest

import weightclip as wc


def test_the_laboratory_is_there_when_asked_for() -> None:
    assert wc.lab.run is wc.lab.experiments.streaming.run is wc.lab._run.run
    assert "run" in dir(wc.lab.experiments.streaming)
    assert dir(wc.lab) == ["analysis", "data", "experiments", "load", "networks", "records", "report", "run", "sweep"]


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    for module in (wc, wc.lab, wc.lab.experiments.streaming):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            module.nothing  # noqa: B018
