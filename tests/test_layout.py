"""The layout of the package: no import cycles, small files, a narrow interface, and no dependency on the lab."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import weightclip
from weightclip.lab.experiment import Experiment

SOURCE = Path(weightclip.__file__).parent
MODULES = {
    ".".join(("weightclip", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
}


def imports(path: Path, in_functions: bool = False) -> Iterator[str]:
    """Return the modules of the package that a module imports at import time, or also when its functions run."""
    for node in statements(ast.parse(path.read_text(encoding="utf-8")), in_functions):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else node.module for name in names]
        else:
            continue
        yield from (name for name in names if name in MODULES)


def statements(tree: ast.AST, in_functions: bool) -> Iterator[ast.AST]:
    """Return the statements of a module, with those in functions and without those for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        if in_functions:
            yield from statements(node, in_functions)


def test_modules_do_not_import_each_other_in_a_cycle() -> None:
    graph = {name: set(imports(path, in_functions=True)) - {name} for name, path in MODULES.items()}
    while leaves := {name for name, needed in graph.items() if not needed}:
        graph = {name: needed - leaves for name, needed in graph.items() if name not in leaves}
    assert not graph, f"import cycle among {sorted(graph)}"


def test_the_library_does_not_import_the_lab() -> None:
    def package(name: str) -> str:
        return name.split(".")[1] if "." in name else ""

    for name, path in MODULES.items():
        if package(name) not in ("lab", "cli", "__main__"):
            assert not [one for one in imports(path) if package(one) in ("lab", "cli")], name


def test_no_file_has_more_than_500_lines() -> None:
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}
    assert {name: length for name, length in lengths.items() if length > 500} == {}


def test_an_experiment_has_at_most_14_members() -> None:
    members = {name for name in (*vars(Experiment), *inspect.get_annotations(Experiment)) if not name.startswith("_")}
    assert len(members) <= 14, sorted(members)
