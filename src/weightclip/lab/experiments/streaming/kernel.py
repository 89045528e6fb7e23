"""Compile a method's rules: `loop.py` with the rules inlined into its pass over the weights.

A kernel is identified by its source text, including the rules. It is cached under the hash of this text, next to
numba's own cache, so that editing a rule triggers recompilation.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

from weightclip.lab.experiments.streaming.code_generation import UNIFORM, Names, Translation, translate
from weightclip.lab.experiments.streaming.rules import Rule
from weightclip.lab.methods import Method

FORMULAS = {
    "leaky_relu": ("z if z > F(0) else F(0.01) * z", "F(1) if h > F(0) else F(0.01)", "F(0)"),
    "relu": ("z if z > F(0) else F(0)", "F(1) if h > F(0) else F(0)", "F(0)"),
    "tanh": ("math.tanh(z)", "F(1) - h * h", "F(1) if abs(h) >= F(0.95) else F(0)"),
}
"""Activation -> its value at z, and, given the value h, its derivative and whether the unit is saturated."""


def kernel_source(method: Method[Rule], activation: str, dtype: str, diagnostics: bool, per_unit: bool = False) -> str:
    """The source of a method's kernel. `per_unit`: each unit has its own box."""
    from weightclip.lab.experiments.streaming import loop

    general, rest = inspect.getsource(loop).split("# specialized from here\n")
    _, learn = rest.split("# to here\n")
    return f"{general}{_specialized(method, activation, dtype, diagnostics, per_unit)}\n{learn}"


def rules_text(method: Method[Rule]) -> str:
    """The source of a method's rules with the functions and constants that they use. Equal texts are equal rules."""
    return _specialized(method, "relu", "float64", diagnostics=False)


@dataclass(frozen=True)
class _Part:
    """One function of a rule: its kind, its translation and the names of its states."""

    kind: str
    text: Translation
    states: dict[str, str]
    clips: bool

    def call(self) -> str:
        return f"{self.text.name}({', '.join(self.states.get(read, read) for read in self.text.reads)})"


def _specialized(method: Method[Rule], activation: str, dtype: str, diagnostics: bool, per_unit: bool = False) -> str:
    names = Names(tuple(method.settings), tuple(name for name in UNIFORM if not (per_unit and name == "box")))
    states = {state: f"state_{i}" for i, state in enumerate(method.optimizer.state)}
    parts = [
        _Part(kind, translate(getattr(rule, kind), rule, names, f"{kind}_{i}"), states, _clips(rule, kind))
        for kind in ("before", "update", "after")
        for i, rule in enumerate(method.parts)
        if getattr(rule, kind) is not None
    ]
    snapshot = any(rule.snapshot == "first update" for rule in method.parts)
    initial = any("w0" in part.text.reads for part in parts)
    precision = "exact" if dtype == "float64" else "fast"
    value, derivative, saturated = FORMULAS[activation]
    passes = {"rows_pass": False} | ({"first_rows_pass": True} if snapshot else {})
    flags = [
        f"F = np.{dtype}",
        f"DIAGNOSTICS = {diagnostics}",
        f"SNAPSHOT = {snapshot}",
        f"PER_UNIT = {per_unit}",
        f"SCALARS = {max(1, len(names.uniform))}",
        f"STATES = {len(states)}",
        f"INITIAL = {initial}",
        f"exp, log = {precision}_exp, {precision}_log\n",
    ]
    return "\n\n".join(
        [
            "\n".join(flags),
            _compiled("activation(z)", [f"return {value}"]),
            _compiled("derivative(h)", [f"return {derivative}"]),
            _compiled("saturated(h)", [f"return {saturated}"]),
            *(f"@njit(**OPTIONS)\n{text}\n" for text in names.helpers.values()),
            *(f"@njit(**OPTIONS)\n{part.text.source}\n" for part in parts),
            _scalars(names),
            *(_rows_pass(name, parts, diagnostics, first=first) for name, first in passes.items()),
            "" if snapshot else "first_rows_pass = rows_pass\n",
            *(
                _rows_pass(name.replace("rows", "columns"), parts, diagnostics, first=first, by_column=True)
                for name, first in (passes.items() if per_unit else ())
            ),
            "" if snapshot and per_unit else f"first_columns_pass = {'columns' if per_unit else 'first_rows'}_pass",
            "" if per_unit else "columns_pass = rows_pass\n",
        ]
    )


def _clips(rule: Rule, kind: str) -> bool:
    return kind == "after" and "box" in inspect.signature(getattr(rule, kind)).parameters


def _compiled(signature: str, lines: Sequence[str]) -> str:
    return "\n    ".join([f"@njit(**OPTIONS)\ndef {signature}:", *lines]) + "\n"


def _scalars(names: Names) -> str:
    """Expressions that are the same for all weights of a tensor, computed in float64 once per step."""
    lines = [f"out[{i}] = {expression}" for i, expression in enumerate(names.uniform)] or ["pass"]
    return _compiled("scalars(out, step, s, box, rms, settings)", lines)


def _rows_pass(name: str, parts: Sequence[_Part], diagnostics: bool, *, first: bool, by_column: bool = False) -> str:
    """The pass over the rows of a tensor, which applies all parts to each weight in order.

    Per-unit boxes belong to the rows or, with `by_column`, to the columns.
    """
    reads = {read for part in parts for read in part.text.reads}
    change = ["w, g = w_row[j], d * h[j]"]
    change += ["w0 = w0_row[j]"] if "w0" in reads else []
    change += ["box = column_box[j]"] if "box" in reads and by_column else []
    change += ["noise = noise_row[j]"] if "noise" in reads else []
    for part in parts:
        if part.kind == "before":
            change.append(f"g = {part.call()}")
        elif part.kind == "update":
            change += [f"{state} = {state}_row[j]" for state in part.states.values()]
            change.append(f"{', '.join(['w', *part.states.values()])} = {part.call()}")
            change += [f"{state}_row[j] = {state}" for state in part.states.values()]
            change += ["w0_row[j] = w0 = w"] if first else []
        elif part.clips and diagnostics:
            change += [f"inside = {part.call()}", "sum_clipped += F(1) if inside != w else F(0)", "w = inside"]
        else:
            change.append(f"w = {part.call()}")
    change.append("w_row[j] = w")
    use = ["sum_ahead += w * ahead[j]"]
    if diagnostics:
        use += ["sum_after += w * after[j]", "sum_squares += w * w", "sum_absolutes += abs(w)"]
    row = ["a = start + i * columns", "w_row = theta[a : a + columns]", "d = delta[i]"]
    row += [f"{state}_row = state[{i}, a : a + columns]" for i, state in enumerate(parts[0].states.values())]
    row += ["w0_row = initial[a : a + columns]"] if "w0" in reads else []
    row += ["box = row_box[i]"] if "box" in reads and not by_column else []
    if "noise" in reads:
        row += [
            "noise_row = normals[: columns + columns % 2]",
            "draw(noise_row, bits, columns, a, seed, step, injected, t)",
        ]
    row.append("sum_ahead, sum_after, sum_squares, sum_absolutes, sum_clipped = F(0), F(0), F(0), F(0), F(0)")
    loop = ["for j in range(columns):", *(f"    {line}" for line in change)]
    if _is_slow(parts):
        loop += ["for j in range(columns):", "    w = w_row[j]"]
    loop += [f"    {line}" for line in use]
    row += loop
    row += ["z_ahead[i] = sum_ahead", "z_after[i] = sum_after"]
    row += ["squares += sum_squares", "absolutes += sum_absolutes", "clipped += sum_clipped"]
    scalars = sorted((read for read in reads if read.startswith("c_")), key=lambda read: int(read[2:]))
    lines = ["squares = absolutes = clipped = 0.0"]
    lines += [f"{scalar} = c[{scalar[2:]}]" for scalar in scalars]
    lines += ["for i in range(rows):", *(f"    {line}" for line in row), "return squares, absolutes, clipped"]
    arguments = (
        "theta, state, initial, c, row_box, column_box, start, rows, columns, delta, h, after, ahead, "
        "z_after, z_ahead, normals, bits, seed, step, injected, t"
    )
    return _compiled(f"{name}({arguments})", lines)


def _is_slow(parts: Sequence[_Part]) -> bool:
    """Whether the parts use slow operations such as roots or quotients; a separate loop for the sums is then faster."""
    return any(mark in part.text.source for part in parts for mark in ("sqrt(", "exp(", "log(", "tanh(", " / "))
