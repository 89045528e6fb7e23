"""Private names of PyTorch are used in only one file."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import weightclip

SOURCE = Path(weightclip.__file__).parent
PRIVATE = {
    "_conv_forward",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_modules",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_step_post_hooks",
    "_orig_mod",
    "_parameters",
}
"""Private attributes of modules and optimizers, whose type is not visible in an attribute access."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            yield from filter(is_private, [*(node.module or "").split("."), *(alias.name for alias in node.names)])
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            owner = root.id if isinstance(root, ast.Name) else ""
            if owner in ("torch", "nn", "fx") or (owner != "self" and node.attr in PRIVATE):
                yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.rstrip(".") in PRIVATE:
            yield node.value


def test_the_search_finds_private_names() -> None:
    code = (
        "from torch._compile import _disable_dynamo\ntorch._foreach_add_(a)\nm._parameters\ngetattr(m, '_orig_mod')\n"
    )
    found = sorted(private_names(ast.parse(code)))
    assert found == ["_compile", "_disable_dynamo", "_foreach_add_", "_orig_mod", "_parameters"]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_private_pytorch_names_are_in_one_file(path: Path) -> None:
    found = set(private_names(ast.parse(path.read_text())))
    assert bool(found) == (path.name == "_torch_private.py"), found
