"""Translate the Python of a rule to the Python of a kernel.

An expression that is the same for all weights of a tensor (of settings, the step and the layer's constants) is hoisted
out of the function: it is computed once per step in float64 and passed as an argument. The rest uses only the type of
the weights, so that the loop over a row vectorizes.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from weightclip.lab.experiments.streaming import rules
from weightclip.lab.experiments.streaming.rules import READABLE, Rule, location

PROVIDED = ("abs", "min", "max", "sqrt", "exp", "log", "tanh", "sign")
"""Functions that a rule can call in addition to its own functions."""

TAKEN = (*PROVIDED, "F", "np", "math", "njit")
"""Names that are reserved in a kernel."""

UNIFORM = ("step", "s", "box", "rms")
"""Arguments of a rule that are the same for all weights of a tensor, in addition to the settings."""

ALLOWED = (ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
"""Expressions that are copied unchanged, in addition to names, numbers, arithmetic and calls."""


@dataclass(frozen=True)
class Names:
    """Names shared by the functions of one kernel."""

    settings: tuple[str, ...]
    constants: tuple[str, ...] = UNIFORM
    uniform: dict[str, str] = field(default_factory=dict)  # expression in float64 -> name: c_0, c_1, ...
    helpers: dict[Callable[..., Any], str] = field(default_factory=dict)  # helper function of a rule -> source

    def place(self, expression: str) -> str:
        return self.uniform.setdefault(expression, f"c_{len(self.uniform)}")


@dataclass(frozen=True)
class Translation:
    """A function of the kernel: its name, arguments and source."""

    name: str
    reads: tuple[str, ...]
    source: str


def translate(function: Callable[..., Any], rule: Rule, names: Names, name: str) -> Translation:
    """Translate one function of a rule and give it a name."""
    tree = _parsed(function, rule)
    parameters = list(inspect.signature(function).parameters)
    per_weight = [p for p in parameters if p in rule.state or (p in READABLE and p not in names.constants)]
    uniform = {
        p: p if p in names.constants else f"settings[{names.settings.index(p)}]"
        for p in parameters
        if p not in per_weight
    }
    writer = _Writer(function, rule, names, uniform)
    body = writer.statements(tree.body)
    _check_returns(tree, function, rule)
    reads = (*per_weight, *sorted(writer.used, key=lambda name: int(name[2:])))
    return Translation(name, reads, _text(name, reads, body))


def _check_returns(tree: ast.FunctionDef, function: Callable[..., Any], rule: Rule) -> None:
    expected = ("w", *rule.state) if function is rule.update else ("g",) if function is rule.before else ("w",)
    returns = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    counts = [len(value.elts) if isinstance(value, ast.Tuple) else 1 for value in returns]
    if not returns or any(count != len(expected) for count in counts):
        got = "nothing" if not returns else f"{counts[0]} value{'s' * (counts[0] != 1)}"
        states = f" (the weight, then each of its states, {', '.join(rule.state)})" if len(expected) > 1 else ""
        line = next((node.lineno for node in ast.walk(tree) if isinstance(node, ast.Return)), 1)
        raise ValueError(
            f"{location(function, line)}: rule {rule.name}: {tree.name} returns {got}, expected "
            f"{', '.join(expected)}{states}"
        )


def _text(name: str, arguments: tuple[str, ...], body: list[ast.stmt]) -> str:
    lines = [line for statement in body for line in ast.unparse(ast.fix_missing_locations(statement)).splitlines()]
    return "\n    ".join([f"def {name}({', '.join(arguments)}):", *lines])


def _parsed(function: Callable[..., Any], rule: Rule) -> ast.FunctionDef:
    if function.__name__ == "<lambda>" or function.__closure__:
        kind = "a lambda" if function.__name__ == "<lambda>" else f"{function.__name__!r}, which uses outer variables"
        raise ValueError(
            f"{location(function)}: rule {rule.name}: got {kind}, expected a function written with def at the top level"
        )
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except OSError as error:
        raise ValueError(f"rule {rule.name}: the source of {function.__name__} is not available: {error}") from error
    assert isinstance(tree, ast.FunctionDef)
    if ast.get_docstring(tree) is not None:
        tree.body = tree.body[1:]
    assigned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for name in sorted(assigned | set(inspect.signature(function).parameters)):
        if name in TAKEN or re.fullmatch(r"c_\d+", name):
            raise ValueError(
                f"{location(function)}: rule {rule.name}: {function.__name__} has a variable {name!r}, expected "
                "another name"
            )
    return tree


class _Writer(ast.NodeTransformer):
    """Rewrites the statements of a function. `uniform` maps names that are the same for all weights to float64 names.

    A helper (`uniform` is None) gets no additional arguments: its constants are not hoisted.
    """

    def __init__(self, function: Callable[..., Any], rule: Rule, names: Names, uniform: dict[str, str] | None) -> None:
        self.function, self.rule, self.names = function, rule, names
        self.is_helper = uniform is None
        self.uniform = uniform or {}
        self.used: set[str] = set()
        self.local = set(inspect.signature(function).parameters) - set(self.uniform)

    def statements(self, body: list[ast.stmt], nested: bool = False) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        for statement in body:
            done += self._statement(statement, nested)
        return done

    def _statement(self, node: ast.stmt, nested: bool) -> list[ast.stmt]:
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            left = ast.Name(node.target.id, ast.Load())
            return self._statement(ast.Assign([node.target], ast.BinOp(left, node.op, node.value)), nested)
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name) and self._is_uniform(node.value) and not nested:
                self.uniform[target.id] = f"({self._in_float64(node.value)})"
                return []
            value = self.visit(node.value)
            for name in ast.walk(target):
                if isinstance(name, ast.Name):
                    self.uniform.pop(name.id, None)
                    self.local.add(name.id)
            return [ast.Assign([target], value)]
        if isinstance(node, ast.If):
            assignments = self._make_local(node)
            test = self.visit(node.test)
            body, other = self.statements(node.body, True), self.statements(node.orelse, True)
            return [*assignments, ast.If(test, body, other)]
        if isinstance(node, ast.Return) and node.value is not None:
            if isinstance(node.value, ast.Tuple):
                return [ast.Return(ast.Tuple([self.visit(value) for value in node.value.elts], ast.Load()))]
            return [ast.Return(self.visit(node.value))]
        raise self._unsupported(node)

    def _make_local(self, node: ast.If) -> list[ast.stmt]:
        """Names that a branch may change are no longer uniform."""
        changed = {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
        assignments: list[ast.stmt] = []
        for name in sorted(changed & set(self.uniform)):
            assignments.append(ast.Assign([ast.Name(name, ast.Store())], self._place(ast.Name(name, ast.Load()))))
            del self.uniform[name]
            self.local.add(name)
        return assignments

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Constant):
            if not isinstance(node.value, int | float):
                raise self._unsupported(node)
            return ast.Call(ast.Name("F", ast.Load()), [node], [])
        if isinstance(node, ast.expr) and self._is_uniform(node):
            return self._place(node)
        return super().visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self.local:
            raise self._unsupported(node)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if isinstance(node.op, ast.Pow) and isinstance(node.right, ast.Constant) and node.right.value == 2:
            base = self.visit(node.left)
            return ast.BinOp(base, ast.Mult(), base)
        return ast.BinOp(self.visit(node.left), node.op, self.visit(node.right))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if node.keywords:
            raise self._unsupported(node)
        return ast.Call(ast.Name(self._function(node.func), ast.Load()), [self.visit(arg) for arg in node.args], [])

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, ALLOWED):
            raise self._unsupported(node)
        return super().generic_visit(node)

    def _global(self, name: str) -> Any:
        return self.function.__globals__.get(name)

    def _is_number(self, name: str) -> bool:
        return isinstance(self._global(name), int | float) and name not in self.local

    def _is_uniform(self, node: ast.expr) -> bool:
        """Whether the expression depends on no single weight."""
        called = {id(name) for call in ast.walk(node) if isinstance(call, ast.Call) for name in ast.walk(call.func)}
        return all(
            name.id in self.uniform or self._is_number(name.id)
            for name in ast.walk(node)
            if isinstance(name, ast.Name) and id(name) not in called
        )

    def _place(self, node: ast.expr) -> ast.expr:
        if self.is_helper:
            return ast.parse(f"F({self._in_float64(node)})", mode="eval").body
        name = self.names.place(self._in_float64(node))
        self.used.add(name)
        return ast.Name(name, ast.Load())

    def _in_float64(self, node: ast.expr) -> str:
        copied = ast.parse(ast.unparse(node), mode="eval").body
        return ast.unparse(ast.fix_missing_locations(_Substitute(self).visit(copied)))

    def _function(self, node: ast.expr) -> str:
        """The name of a function in the kernel: math.sqrt and numpy.sqrt are sqrt."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in PROVIDED:
            if isinstance(self._global(node.value.id), ModuleType):
                return node.attr
        elif isinstance(node, ast.Name):
            value = self._global(node.id)
            if isinstance(value, FunctionType) and value is not rules.sign:
                return self._helper(value)
            if node.id in PROVIDED:
                return node.id
        raise self._unsupported(node)

    def _helper(self, function: FunctionType) -> str:
        name = f"own_{function.__name__}"
        if function not in self.names.helpers:
            tree = _parsed(function, self.rule)
            writer = _Writer(function, self.rule, self.names, None)
            self.names.helpers[function] = ""  # stops the recursion of a helper that calls itself
            parameters = tuple(inspect.signature(function).parameters)
            self.names.helpers[function] = _text(name, parameters, writer.statements(tree.body, nested=True))
        return name

    def _unsupported(self, node: ast.AST) -> ValueError:
        where = f"{location(self.function, getattr(node, 'lineno', 1))}: rule {self.rule.name}"
        text = ast.unparse(node).splitlines()[0]
        return ValueError(
            f"{where}: {text!r} in {self.function.__name__} is not supported; "
            f"expected assignments, if, return, arithmetic, comparisons, {', '.join(PROVIDED)} and your own functions"
        )


class _Substitute(ast.NodeTransformer):
    """Replaces uniform names by their expressions, and global numbers by their values."""

    def __init__(self, writer: _Writer) -> None:
        self.writer = writer

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.writer.uniform:
            return ast.parse(self.writer.uniform[node.id], mode="eval").body
        return ast.Constant(self.writer._global(node.id))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        function = self.writer._function(node.func)
        exact = f"exact_{function}" if function in ("exp", "log") else function
        return ast.Call(ast.Name(exact, ast.Load()), [self.visit(arg) for arg in node.args], [])
