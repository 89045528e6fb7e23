import errno
import shlex
import signal
import subprocess
import sys
from typing import Any

import pytest

import weightclip
from weightclip import cli
from weightclip.cli import main
from weightclip.cli.arguments import given
from weightclip.lab.experiment import Experiment
from weightclip.lab.registry import experiment_of, experiments

pytestmark = pytest.mark.usefixtures("empty_directory")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"weightclip {weightclip.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_names_the_commands(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "run " in shown
    assert "data " in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "COMMAND: got 'rnu', expected one of run, sweep"),
        (["rnu"], "did you mean 'run'? (see weightclip --help)"),
        (["--nothing"], "--nothing: unknown option (see weightclip --help)"),
        (["--vers"], "--vers: unknown option; did you mean --version?"),
        (["run"], "PROBLEM: got none, expected it before the options (see weightclip run --help)"),
        (["run", "--method", "sgd", "warm-start"], "PROBLEM: got '--method', expected it before the options"),
        (["run", "--out", "warm-start"], "'warm-start' was parsed as the value of --out"),
        (["run", "replay-ratio", "--kapa", "3"], "did you mean --kappa? (see weightclip run replay-ratio --help)"),
        (["run", "replay-ratio", "--steps", "3"], "--steps: unknown option; did you mean --frames?"),
        (["run", "warm-start", "--learning-rate", "3"], "--learning-rate: unknown option; did you mean --lr?"),
        (["sweep", "warm-start", "--method", "sgd"], "--method: unknown option; did you mean --methods?"),
        (["run", "warm-start", "--scale", "labtop"], "did you mean 'laptop'?"),
        (["run", "replay-ratio", "--suite", "minatar", "--out", "policy-collapse", "--enf", "x"], "--enf: unknown"),
        (["best", "x", "--metrik", "y"], "did you mean --metric? (see weightclip best --help)"),
        (["data", "lst"], "did you mean 'list'? (see weightclip data --help)"),
        (["report", "x", "-o", "x.pdf"], "-o: got 'x.pdf', expected a file that ends in .html"),
    ],
)
def test_an_error_prints_one_line_and_exits_with_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("weightclip: error: ")
    assert message in shown.err
    assert shown.err.count("\n") == 1


def raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def action(arguments: object) -> int:
        raise error

    monkeypatch.setattr("weightclip.cli.data._list", action)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "out/x"), "out/x: No space left on device; free some space"),
        (PermissionError(errno.EACCES, "Permission denied", "out"), "out: Permission denied; choose a directory that"),
        (OSError("strange"), "strange"),
        (ValueError("kappa: got\n 0"), "kappa: got 0"),
    ],
)
def test_errors_are_reported_in_one_line(
    error: Exception, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(error, monkeypatch)
    assert main(["data"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"weightclip: error: {line}")
    assert shown.count("\n") == 1


def test_a_missing_dependency_suggests_an_install_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(ModuleNotFoundError("No module named 'polars'", name="polars"), monkeypatch)
    assert main(["data"]) == 2
    assert capsys.readouterr().err == 'weightclip: error: this command requires polars: pip install "weightclip[lab]"\n'


def test_every_command_reports_missing_lab_dependencies() -> None:
    program = """
import sys
sys.modules["rich"] = None  # as if it were not installed
from weightclip_command import main
sys.exit(main())
"""
    for words in (["run", "input-permuted-mnist", "--steps", "10"], ["data"], ["status"]):
        result = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith("weightclip: error: this command requires rich")
        assert result.stderr.endswith('pip install "weightclip[lab]"\n')


def test_ctrl_c_is_not_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    raising(KeyboardInterrupt(), monkeypatch)
    assert main(["data"]) == 130
    assert capsys.readouterr().err == "weightclip: stopped\n"


def test_ctrl_c_during_imports_ends_without_a_traceback() -> None:
    """While PyTorch is imported, a KeyboardInterrupt may become another error or be lost."""
    import_interrupted = """
import builtins, os, signal
own = builtins.__import__
def interrupted(name, *rest):
    if name == "torch":
        os.kill(os.getpid(), signal.SIGINT)
    return own(name, *rest)
builtins.__import__ = interrupted
from weightclip_command import main
main()
"""
    words = ["run", "input-permuted-mnist"]
    result = subprocess.run(
        [sys.executable, "-c", import_interrupted, *words], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGINT, "", "")


def test_the_entry_point_restores_the_sigint_handler() -> None:
    code = """
import signal, sys, weightclip_command
before = signal.getsignal(signal.SIGINT)
sys.argv = ["weightclip", "--version"]
code = weightclip_command.main()
assert signal.getsignal(signal.SIGINT) is before
sys.exit(code)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("experiment", experiments().values(), ids=lambda one: one.name)
def test_help_examples_work(experiment: Experiment[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert set(experiment.presets()["examples"]) == {"run", "sweep"}
    for command, examples in experiment.presets()["examples"].items():
        main([command, experiment.schema.problems[0], "--help"])
        result = capsys.readouterr().out
        for example in examples:
            assert f"weightclip {command} {example}" in result
            arguments = cli._parser().parse_args([command, *shlex.split(example)])
            if command == "run":
                settings = given(arguments, experiment.config)
                assert experiment_of(arguments.problem).configure(arguments.problem, settings)


def test_unexpected_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(TypeError("a defect"), monkeypatch)
    with pytest.raises(TypeError, match="a defect"):
        main(["data"])


def test_the_traceback_can_be_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(ValueError("where?"), monkeypatch)
    monkeypatch.setenv("WEIGHTCLIP_TRACEBACK", "1")
    with pytest.raises(ValueError, match="where"):
        main(["data"])


HEAVY = ("torch", "numba", "polars", "matplotlib")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--version"], 0),
        (["--help"], 0),
        (["run", "--help"], 0),
        (["sweep", "input-permuted-mnist", "--help"], 0),
        (["run", "warm-start", "--scale", "laptop", "--help"], 0),
        (["run", "policy-collapse", "--help"], 0),
        (["run", "replay-ratio", "--help"], 0),
        (["best", "--help"], 0),
        (["figure", "--help"], 0),
        (["data", "--help"], 0),
        (["status", "--help"], 0),
        (["report", "--help"], 0),
        (["watch", "--help"], 0),
        (["reproduce", "--help"], 0),
        (["run", "input-permuted-mnits"], 2),
        (["run", "input-permuted-mnist", "--kapa", "2"], 2),
        (["run", "input-permuted-mnist", "--method", "adma"], 2),
        (["run", "policy-collapse", "--method", "adma"], 2),
        (["run", "replay-ratio", "--agent", "rainbw"], 2),
        (["run", "warm-start", "--lr", "-1"], 2),
        (["sweep", "replay-ratio", "--methods", "adma"], 2),
    ],
)
def test_help_and_argument_errors_import_no_heavy_modules(words: list[str], code: int) -> None:
    program = (
        "import sys; from weightclip_command import main; code = main();"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    result = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert result.stderr.splitlines()[-1] == "[]", result.stderr
    assert result.returncode == code


def test_the_command_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "weightclip", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, f"weightclip {weightclip.__version__}\n")


def test_only_the_positional_problem_selects_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--wandb", "policy-collapse", "input-permuted-mnist", "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: weightclip run input-permuted-mnist")
    assert "--num-steps" not in shown
    arguments = cli._parser().parse_args(["run", "replay-ratio", "--suite", "minatar", "--out", "policy-collapse"])
    assert (arguments.problem, arguments.suite, str(arguments.out)) == ("replay-ratio", "minatar", "policy-collapse")


def test_common_options_may_precede_the_problem() -> None:
    arguments = cli._parser().parse_args(["run", "--out", "here", "warm-start", "--seeds", "3"])
    assert (str(arguments.out), arguments.seeds) == ("here", [0, 1, 2])
    assert str(cli._parser().parse_args(["run", "--out", "here", "warm-start", "--out", "there"]).out) == "there"


def test_help_shows_defaults_that_depend_on_preceding_options(capsys: pytest.CaptureFixture[str]) -> None:
    def defaults(*options: str) -> str:
        assert main(["run", "policy-collapse", *options, "--help"]) == 0
        return " ".join(capsys.readouterr().out.split())

    assert "rounded down to whole rollouts (default: 9_998_336)" in defaults()
    assert "or hidden=5,output=1 (default: 5)" in defaults()  # Ant
    assert "or hidden=5,output=1 (default: 3)" in defaults("--env", "Walker2d-v4")
    assert "rounded down to whole rollouts (default: 1_998_848)" in defaults("--scale", "laptop")
    assert "discount factor (default: 0.99)" in defaults("--scale", "nonsense")


def test_sigterm_ends_a_command_as_ctrl_c_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def terminated(arguments: object) -> int:
        signal.raise_signal(signal.SIGTERM)
        return 0

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("weightclip.cli.data._list", terminated)
    assert main(["data"]) == 130
    assert capsys.readouterr().err == "weightclip: stopped\n"
    assert signal.getsignal(signal.SIGTERM) is before
