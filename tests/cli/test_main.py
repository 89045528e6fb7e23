import builtins
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
from weightclip.lab.experiment import Experiment
from weightclip.lab.plugins import experiment_of, experiments

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
        (["rnu"], "invalid choice: 'rnu'"),
        (["--nothing"], "unrecognized arguments: --nothing"),
        (["run"], "required: PROBLEM"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
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

    monkeypatch.setattr(cli.data, "_list", action)


@pytest.fixture(autouse=True)
def _commands() -> None:
    main(["--version"])  # imports them


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "out/x"), "out/x: No space left on device; free some space"),
        (PermissionError(errno.EACCES, "Permission denied", "out"), "out: Permission denied; choose a directory that"),
        (OSError("strange"), "strange"),
        (ValueError("kappa: got\n 0"), "kappa: got 0"),
    ],
)
def test_what_goes_wrong_is_told_in_one_line(
    error: Exception, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(error, monkeypatch)
    assert main(["data"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"weightclip: error: {line}")
    assert shown.count("\n") == 1


def test_a_missing_dependency_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(ModuleNotFoundError("No module named 'polars'", name="polars"), monkeypatch)
    assert main(["data"]) == 2
    assert capsys.readouterr().err == 'weightclip: error: this needs polars: pip install "weightclip[lab]"\n'


def test_without_the_laboratorys_packages_every_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = builtins.__import__

    def without_rich(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "rich":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return original(name, *rest, **more)

    for module in [name for name in sys.modules if name.startswith("weightclip.cli.")]:
        monkeypatch.delitem(sys.modules, module)
        monkeypatch.delattr(cli, module.rpartition(".")[2], raising=False)
    monkeypatch.setattr(builtins, "__import__", without_rich)
    assert main(["run", "input-permuted-mnist"]) == 2
    assert "pip install" in capsys.readouterr().err


def test_ctrl_c_is_no_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    raising(KeyboardInterrupt(), monkeypatch)
    assert main(["data"]) == 130
    assert capsys.readouterr().err == "weightclip: stopped\n"


def test_ctrl_c_before_all_is_imported_ends_without_a_traceback() -> None:
    """PyTorch's import is where a KeyboardInterrupt may come out as another error, or as none."""
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
    told = subprocess.run([sys.executable, "-c", import_interrupted], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout, told.stderr) == (-signal.SIGINT, "", "")


def test_the_entry_point_leaves_ctrl_c_as_it_was() -> None:
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
def test_examples_of_the_help_work(experiment: Experiment[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert set(experiment.examples) == {"run", "sweep"}
    for command, examples in experiment.examples.items():
        main([command, experiment.problems()[0], "--help"])
        told = capsys.readouterr().out
        for example in examples:
            assert f"weightclip {command} {example}" in told
            words = [command, *shlex.split(example)]
            arguments = cli._parser(words).parse_args(words)
            if command == "run":
                settings = cli.run.given(arguments, experiment.config)
                assert experiment_of(arguments.problem).configure(arguments.problem, settings)


def test_a_defect_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(TypeError("a defect"), monkeypatch)
    with pytest.raises(TypeError, match="a defect"):
        main(["data"])


def test_the_traceback_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(ValueError("where?"), monkeypatch)
    monkeypatch.setenv("WEIGHTCLIP_TRACEBACK", "1")
    with pytest.raises(ValueError, match="where"):
        main(["data"])


def test_it_is_a_module_too_and_a_mistake_is_told_before_anything_heavy_is_imported() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "weightclip", "run", "input-permuted-mnits"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 2
    *imports, last = told.stderr.splitlines()
    assert last.startswith("weightclip: error: problem: got 'input-permuted-mnits'")
    imported = {line.rpartition("|")[2].strip() for line in imports}
    assert "torch" in imported
    assert imported.isdisjoint({"polars", "numba", "matplotlib"})
