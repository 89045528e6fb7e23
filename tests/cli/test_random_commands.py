import os
import subprocess
import sys

import pytest
from random_commands import command_line

from processes import SECONDS
from weightclip.cli import main

pytestmark = pytest.mark.usefixtures("empty_directory")


@pytest.mark.parametrize("block", range(10))
def test_random_command_lines_end_without_a_traceback(block: int, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(1000 + 12 * block, 1012 + 12 * block):
        words = command_line(seed)
        assert main(words) in (0, 1, 2), words
        shown = capsys.readouterr()
        assert "Traceback" not in shown.out + shown.err, words
        assert shown.err.count("\n") <= 1, words


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_500_random_command_lines_in_separate_processes(block: int) -> None:
    environment = {**os.environ, "WEIGHTCLIP_OFFLINE": "1"}
    for seed in range(50 * block, 50 * block + 50):
        words = command_line(seed)
        command = [sys.executable, "-m", "weightclip", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False)
        assert done.returncode in (0, 1, 2), words
        assert "Traceback" not in done.stdout + done.stderr, (words, done.stderr)
