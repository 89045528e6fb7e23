"""Every Python block in the README, the home page, the how-to pages and the page of records is a complete program.

Every command can be parsed.
"""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from weightclip.cli import _parser
from weightclip.cli.sweep import _configs
from weightclip.lab.registry import experiment_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    DOCS / "index.md",
    DOCS / "reference" / "records.md",
    *sorted((DOCS / "howto").glob("*.md")),
]
HOSTS = re.compile(
    r"^(import|from) (accelerate|flax|lightning|stable_baselines3|tianshou|transformers)\b", re.MULTILINE
)
INCLUDE = "--8<--"  # an included file, which has a separate test
HOST_MARKS = (pytest.mark.host, pytest.mark.filterwarnings("ignore::FutureWarning"))  # raised by the libraries


@dataclass(frozen=True)
class Block:
    """A fenced block of a page with its language, text and first line."""

    page: str
    line: int
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(page.name, text.count("\n", 0, m.start()) + 2, m[1], m[2]) for m in found]


def programs() -> list[object]:
    return [
        pytest.param(block, id=f"{block.page}:{block.line}", marks=HOST_MARKS if HOSTS.search(block.text) else ())
        for page in PAGES
        for block in blocks(page)
        if block.language == "python" and INCLUDE not in block.text
    ]


@pytest.mark.parametrize("block", programs())
def test_python_blocks_run(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEIGHTCLIP_OFFLINE", "1")  # the bundled digits
    torch.manual_seed(0)
    # Line numbers in errors refer to the page.
    exec(compile("\n" * (block.line - 1) + block.text, block.page, "exec"), {"__name__": "__main__"})


def commands() -> list[object]:
    pages = [*PAGES, *sorted((DOCS / "reproduction").glob("*.md"))]
    shell = [block for page in pages for block in blocks(page) if block.language == "sh"]
    lines = [(block.page, line) for block in shell for line in block.text.replace("\\\n", " ").splitlines()]
    found = {
        shlex.join(shlex.split(line, comments=True)): page for page, line in lines if line.startswith("weightclip ")
    }
    return [pytest.param(command, id=f"{page}: {command}") for command, page in found.items()]


@pytest.mark.parametrize("command", commands())
def test_commands_can_be_parsed(command: str) -> None:
    _, *arguments = shlex.split(command)
    parsed = _parser().parse_args(arguments)
    if arguments[0] == "sweep" and ".toml" not in command:
        configs, _ = _configs(experiment_of(arguments[1]), parsed)
        assert configs


def test_links_of_the_readme_exist() -> None:
    """Links of the site are checked by `make docs`."""
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_the_certificate_prints_the_output_in_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    program, output = blocks(DOCS / "explanation" / "certificate.md")[:2]
    exec(program.text, {})
    assert capsys.readouterr().out == output.text


def test_the_committed_tutorial_has_its_outputs_and_no_path_of_a_machine() -> None:
    path = DOCS / "tutorial.ipynb"
    text = path.read_text(encoding="utf-8")
    assert len(text) < 300_000
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)
    assert sum(bool(cell.get("outputs")) for cell in json.loads(text)["cells"]) >= 5


def test_the_tutorial_shows_loss_of_plasticity_and_that_clipping_prevents_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("WEIGHTCLIP_OFFLINE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(DOCS / "tutorial.ipynb", as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    names = ("Adam", "output layer")
    printed = "".join(output.text for cell in notebook.cells for output in cell.get("outputs", ()) if "text" in output)
    assert "verdict: loss of plasticity" in printed
    adam, output = (int(re.search(rf"^{name}: (\d+)% in the last", printed, re.MULTILINE)[1]) for name in names)
    assert output > adam + 20
