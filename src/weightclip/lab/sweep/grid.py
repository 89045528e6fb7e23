"""Grids of settings in TOML.

The paper's tables are such files (`paper.toml` in the folder of an experiment); users' files have the same format:

    [grid]                            # Table 1: for each method, the product over the settings that it has
    lr = [0.01, 0.001]
    kappa = [1.0, 2.0]
    hidden = [[300, 150], [100]]      # any other field of the configuration, for every method

    [grid.methods."adam+wc"]          # replaces values for one method
    lr = [0.0001]

    [best.input-permuted-mnist]       # Table 2: one setting per method
    sgd = { lr = 0.001 }
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weightclip._validation import check_count, check_name
from weightclip.lab.config import check_field, read_toml, rename_presets
from weightclip.lab.experiment import NONE, Experiment

PAPER = "paper"

EXAMPLE = "[grid] lr = [0.01, 0.001]"
BEST_EXAMPLE = "[best.input-permuted-mnist] sgd = { lr = 0.001 }"

Settings = dict[str, Any]


def read_presets(
    name: str, experiment: Experiment[Any], options: Mapping[str, Any] = NONE, option: str = "--grid"
) -> Mapping[str, Any]:
    """The tables `grid` and `best` of a TOML file; the name "paper" selects the paper's tables."""
    if name == PAPER:
        return experiment.presets(options)
    path = Path(name)
    if not path.is_file():
        problem = "; it is a problem, which must precede the options" if name in experiment.schema.problems else ""
        raise ValueError(
            f"{option}: got {name!r}, expected {PAPER!r} or a TOML file, for example with {_example(option)}{problem}"
        )
    try:
        return rename_presets(experiment.config, read_toml(path.read_text(encoding="utf-8")))
    except ValueError as error:  # invalid TOML or invalid UTF-8
        raise ValueError(f"{option}: {path} is not TOML: {error}; expected for example {_example(option)}") from error


def grid_seeds(presets: Mapping[str, Any]) -> int:
    """The number of seeds of a grid."""
    return check_count("grid.seeds", _grid(presets).get("seeds", 1))


def search(
    experiment: Experiment[Any], problem: str, methods: Sequence[str], presets: Mapping[str, Any], fixed: Settings
) -> list[Settings]:
    """Table 1: for each method, the product over its settings in the grid; `fixed` settings are not varied."""
    grid = _grid(presets)
    common = _axes(grid)
    by_method = {
        name: _axes(_table(f"grid.methods.{name}", axes))
        for name, axes in _table("grid.methods", grid.get("methods", {})).items()
    }
    if not common and not any(by_method.values()):
        raise ValueError(f"grid: got no settings, expected lists of values, for example {EXAMPLE}")
    known = {method: _known(experiment, problem, method, fixed) for method in (*methods, *by_method)}
    for name in (*common, *(name for axes in by_method.values() for name in axes)):
        check_field("grid", name, sorted({*experiment.schema.settings, *itertools.chain(*known.values())}))
    found = []
    for method in methods:
        axes = {**common, **by_method.get(method, {})}
        used = {name: values for name, values in axes.items() if name in known[method] and name not in fixed}
        for values in itertools.product(*used.values()):
            found.append({**fixed, "method": method, **dict(zip(used, values, strict=True))})
    return found


def best(
    experiment: Experiment[Any], problem: str, methods: Sequence[str], presets: Mapping[str, Any], fixed: Settings
) -> list[Settings]:
    """Table 2: one setting per method; a method that is not in the table takes the experiment's defaults."""
    rows = {method: _flat(_table(f"best.{problem}.{method}", row)) for method, row in _rows(problem, presets).items()}
    for method, row in rows.items():
        known = sorted(_known(experiment, problem, method, fixed))
        for name in row:
            check_name(f"best.{problem}.{method}", name, known)
    return [{**rows.get(method, {}), **fixed, "method": method} for method in methods]


def lacking(problem: str, methods: Sequence[str], presets: Mapping[str, Any]) -> list[str]:
    """The methods without a setting in Table 2; raises a ValueError if the problem is not in it."""
    rows = _rows(problem, presets)
    if not rows:
        names = [f"[{name}]" for name in presets if name != "best"]
        names += [f"[best.{name}]" for name in _table("best", presets.get("best", {}))]
        raise ValueError(f"got {', '.join(names) or 'no table'}, expected [best.{problem}]")
    return [method for method in methods if method not in rows]


def _list_example(values: Any) -> str:
    """An example of a list, for an error message."""
    return f"[{values}]" if isinstance(values, int | float) else "[0.01, 0.001]"


def _example(option: str) -> str:
    return EXAMPLE if option == "--grid" else BEST_EXAMPLE


def _grid(presets: Mapping[str, Any]) -> Mapping[str, Any]:
    if "grid" not in presets:
        raise ValueError(f"[grid] is missing; expected for example {EXAMPLE}")
    return _table("grid", presets["grid"])


def _rows(problem: str, presets: Mapping[str, Any]) -> Mapping[str, Any]:
    return _table(f"best.{problem}", _table("best", presets.get("best", {})).get(problem, {}))


def _table(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}: got {value!r}, expected a table")
    return value


def _axes(grid: Mapping[str, Any]) -> dict[str, list[Any]]:
    axes = _flat({name: values for name, values in grid.items() if name not in ("methods", "seeds")})
    for name, values in axes.items():
        if not isinstance(values, list) or not values:
            example = f"{name} = {_list_example(values)}"
            raise ValueError(f"grid: got {name} = {values!r}, expected a list of values, for example {example}")
    return axes


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """`{settings: {beta1: ...}}` -> `{"settings.beta1": ...}`."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": entry for inner, entry in _flat(value).items()}
        else:
            found[name] = value
    return found


def _known(experiment: Experiment[Any], problem: str, method: str, fixed: Settings) -> set[str]:
    """The fields that can be varied for a method: its settings, and fields that are not settings of any method."""
    schema = experiment.schema
    others = {*schema.fields} - {"problem", "method", "seed", *schema.settings}
    return {*experiment.settings(problem, method, fixed), *others}
