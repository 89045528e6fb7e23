"""The help of `run` and `sweep` says what each problem is."""

import pytest

from weightclip.cli import main
from weightclip.lab.registry import problems


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_the_help_has_a_line_about_each_problem(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.partition("problems, each")[2].splitlines()[1:]]
    about = {words[0]: words[1] for words in lines if words}
    assert set(about) == set(problems())
    assert about["policy-collapse"].startswith("PPO on MuJoCo")
    assert about["label-permuted-emnist"] == "a stream of emnist, each task permutes the labels"


def test_an_unknown_figure_is_reported_before_missing_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figure", "foo"]) == 2
    assert "figure: got 'foo'" in capsys.readouterr().err
