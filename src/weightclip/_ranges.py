"""Clipping ranges: one kappa, one per layer, or one per unit. Imports neither PyTorch nor JAX.

A tensor is clipped to [-kappa k s_l, kappa k s_l], with `kappa` in the optimizer's `param_groups` and the range k: 1
for a single kappa, a number per layer, or k_i for unit i of a layer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from weightclip._validation import Patterns, as_list, check_count, check_number, check_pattern

GOLDEN = 0.6180339887498949
"""Fractional part of the golden ratio: its multiples modulo 1 cover [0, 1) evenly for any number of units."""

OUTPUT, HIDDEN = "output", "hidden"
"""Keys of a mapping for the output layers and for all other layers."""

FEW_UNITS = 8
"""Layers with fewer units are far from covering [low, high]."""

LOW, HIGH, OUTPUT_KAPPA = 0.5, 8.0, 2.0
"""Defaults of `graded`."""


def unit_kappa(i: int, low: float, high: float) -> float:
    """The range of unit i: low (high / low)^u with u = frac(i * 0.618...).

    Examples:
        >>> [round(unit_kappa(i, 0.5, 8.0), 2) for i in range(5)]
        [0.5, 2.77, 0.96, 5.34, 1.85]
    """
    return float(low * (high / low) ** math.fmod(i * GOLDEN, 1.0))


@dataclass(frozen=True)
class Units:
    """The ranges of a tensor's units: unit i of dimension `dim` has k_i.

    Args:
        low, high: the smallest and the largest range.
        dim: the dimension of the tensor that indexes units.
        period: units i and i + period are equal (the gates of a recurrent unit); None: all units differ.
        offset: added to the index of each unit.
    """

    low: float
    high: float
    dim: int = 0
    period: int | None = None
    offset: int = 0

    def kappas(self, size: int) -> list[float]:
        """k_i for i < size, the size of the dimension."""
        return [unit_kappa(i % (self.period or size) + self.offset, self.low, self.high) for i in range(size)]

    def ends(self, size: int) -> tuple[float, float]:
        """The smallest and the largest k_i; [low, high] if the units come close to both ends."""
        kappas = self.kappas(size)
        if len({*kappas}) < FEW_UNITS:
            return min(kappas), max(kappas)
        return self.low, self.high


Range = float | Units
"""Range of one tensor: k, or k_i per unit."""


@dataclass(frozen=True)
class Graded:
    """A range per unit, log-uniform in [low, high], and a separate range for output layers. Returned by `graded`."""

    low: float = LOW
    high: float = HIGH
    output: float | tuple[float, float] = OUTPUT_KAPPA
    output_layers: tuple[str, ...] = ()
    layer_offset: int = 0

    def state(self) -> dict[str, Any]:
        """The rule for checkpoints: a dictionary of numbers, strings and lists, see `rule_from_state`."""
        output = list(self.output) if isinstance(self.output, tuple) else self.output
        return {"low": self.low, "high": self.high, "output": output} | {
            "output_layers": list(self.output_layers),
            "layer_offset": self.layer_offset,
        }

    def __str__(self) -> str:
        inner = f"{_text(self.low)}, {_text(self.high)}, output={_output_text(self.output)}"
        names = f", output_layers={'|'.join(self.output_layers)}" if self.output_layers else ""
        offset = f", layer_offset={self.layer_offset}" if self.layer_offset else ""
        return f"graded({inner}{names}{offset})"


@dataclass(frozen=True)
class ByLayer:
    """A range per layer: name, glob pattern, "output" or "hidden" -> k. The first match applies."""

    ranges: tuple[tuple[str, float], ...]

    def state(self) -> dict[str, Any]:
        """The rule for checkpoints, see `rule_from_state`."""
        return {"ranges": [[name, number] for name, number in self.ranges]}

    def __str__(self) -> str:
        return ",".join(f"{name}={_text(number)}" for name, number in self.ranges)


RangeRule = Graded | ByLayer
Kappa = float | Mapping[str, float] | Graded | ByLayer
"""Accepted values of the argument `kappa`."""


def graded(
    low: float = LOW,
    high: float = HIGH,
    output: float | tuple[float, float] | str = OUTPUT_KAPPA,
    *,
    output_layers: Patterns | None = None,
    layer_offset: int = 0,
) -> Graded:
    """A separate clipping range for each unit of a layer, spread over [low, high].

    Unit i has kappa_i = low (high / low)^{u_i} with u_i = frac(i * 0.618...), which spreads the ranges evenly on a
    logarithmic scale. Units with a small range stay plastic, units with a large range stay expressive. Where all units
    need a small range, as in warm starting, a single small kappa is better. A unit is a row of a Linear or
    convolutional weight and an entry of its bias; all gates of a recurrent unit have the same range. The ranges are
    deterministic and not stored.

    Args:
        low: the smallest range; positive.
        high: the largest range; at least `low`, finite.
        output: the range of the output layers: a number, or (low, high) to grade them by their *inputs*, with the
            geometric mean for their bias. A string names the output layers, like `output_layers`.
        output_layers: names or glob patterns of the tensors of the output layers, such as "head.*". By default they are
            found by tracing the forward pass; if that fails, all layers are graded the same way, with a warning.
        layer_offset: unit i of layer l has the range of unit i + l * layer_offset. In a residual network, where
            channel i passes through all blocks, 0 gives it the same range in every block. Layers with a weight of two
            or more dimensions are numbered from 0: in PyTorch in the order of `model.parameters()`, in JAX in the order
            of the tree, with numbers in keys in numerical order (`Dense_2` before `Dense_10`).

    Examples:
        >>> print(graded())
        graded(0.5, 8, output=2)
        >>> print(graded(0.5, 16.0, output=(0.25, 4.0)))
        graded(0.5, 16, output=0.25-4)
    """
    if isinstance(output, str):
        if output_layers is not None:
            raise ValueError(f"output: got {output!r} and output_layers, expected only one of them to name the layers")
        return graded(low, high, output_layers=output, layer_offset=layer_offset)
    low, high = _interval("low", "high", low, high)
    if isinstance(output, (tuple, list)):
        if len(output) != 2:
            raise ValueError(f"output: got {output!r}, expected a number or (low, high)")
        checked: float | tuple[float, float] = _interval("output[0]", "output[1]", *output)
    else:
        checked = check_number("output", output, infinite=True)
    return Graded(low, high, checked, tuple(as_list(output_layers)), check_count("layer_offset", layer_offset, least=0))


def read_kappa(kappa: Kappa) -> tuple[float, RangeRule | None]:
    """The number for `param_groups` and the rule that it scales: (kappa, None) for a number, (1, rule) for a rule."""
    if isinstance(kappa, (Graded, ByLayer)):
        return 1.0, kappa
    if isinstance(kappa, Mapping):
        return 1.0, by_layer(kappa)
    if not (hasattr(kappa, "__float__") or hasattr(kappa, "item")):
        raise ValueError(f"kappa: got {kappa!r}, expected a positive number, a mapping, or weightclip.graded(...)")
    return check_number("kappa", kappa, infinite=True), None


def rule_from_state(state: Mapping[str, Any] | str | None) -> RangeRule | None:
    """The range rule of a checkpoint, from `state()` or, in older checkpoints, from its text; None for one kappa."""
    if state is None:
        return None
    if isinstance(state, str):
        return read_kappa(parse_kappa(state))[1]
    if "ranges" in state:
        return by_layer(dict(state["ranges"]))
    return graded(**state)


def by_layer(ranges: Mapping[str, float]) -> ByLayer:
    """Check a mapping and convert it to a rule."""
    if not ranges:
        raise ValueError("kappa: got an empty mapping, expected for example {'output': 1.0, 'hidden': 5.0}")
    for name in ranges:
        if not isinstance(name, str) or not name:
            raise ValueError(f"kappa: got the key {name!r}, expected a name, a glob pattern, 'output' or 'hidden'")
    return ByLayer(
        tuple((name, check_number(f"kappa[{name!r}]", value, infinite=True)) for name, value in ranges.items())
    )


def parse_kappa(text: str) -> Kappa:
    """Parse a kappa: `2`, `graded`, `graded(0.5, 16, output=0.25-4)`, `hidden=5,output=1`, `*.weight=2`.

    A name may contain commas: text without "=" belongs to the name that follows it.

    Examples:
        >>> parse_kappa("hidden=inf,output=1")
        ByLayer(ranges=(('hidden', inf), ('output', 1.0)))
        >>> str(parse_kappa("graded"))
        'graded(0.5, 8, output=2)'
    """
    text = text.strip()
    if re.fullmatch(r"graded(\(.*)?", text):
        return _parse_graded(text)
    if "=" in text:
        ranges: dict[str, float] = {}
        for part in re.findall(r"[^=]*=[^,]*(?:,|$)|.+", text):
            name, equals, value = (piece.strip() for piece in part.removesuffix(",").partition("="))
            if not equals:
                raise ValueError(f"kappa: got {text!r}, {_EXAMPLES}")
            if name in ranges:
                raise ValueError(f"kappa: got {name!r} twice in {text!r}, expected each name once")
            ranges[name] = _number(text, value)
        if text.endswith(","):
            raise ValueError(f"kappa: got {text!r}, {_EXAMPLES}")
        return by_layer(ranges)
    return check_number("kappa", _number(text, text), infinite=True)


def range_of(
    rule: RangeRule | None,
    names: Sequence[str],
    is_output: bool | None,
    unit: Units,
    input_unit: Units | None,
    layer: int = 0,
) -> Range | None:
    """The range of one tensor; None if a rule by layer does not name it.

    Args:
        rule: the range rule; None for a single kappa.
        names: names of the tensor; tied weights have several.
        is_output: whether it belongs to an output layer; None if unknown.
        unit: the dimension that indexes its units; `low` and `high` are ignored.
        input_unit: the dimension that indexes the units of its inputs; None for a bias.
        layer: index of its layer in the model.
    """
    if rule is None:
        return 1.0
    if isinstance(rule, ByLayer):
        for pattern, number in rule.ranges:
            if _matches(pattern, names, is_output):
                return number
        return None
    if not is_output:
        return Units(rule.low, rule.high, unit.dim, unit.period, layer * rule.layer_offset)
    if not isinstance(rule.output, tuple):
        return rule.output
    low, high = rule.output
    return math.sqrt(low * high) if input_unit is None else Units(low, high, input_unit.dim, input_unit.period)


def needs_outputs(rule: RangeRule | None, names: Iterable[str]) -> bool:
    """Whether the rule needs the output layers of a model with these parameter names."""
    if isinstance(rule, ByLayer):
        roles = {OUTPUT, HIDDEN} - set(names)
        return any(pattern in roles for pattern, _ in rule.ranges)
    return isinstance(rule, Graded) and not rule.output_layers


def names_tensors(rule: RangeRule | None) -> bool:
    """Whether the rule has a name or a pattern that a model may not have: another one than its roles and "*"."""
    if isinstance(rule, ByLayer):
        return any(pattern not in (OUTPUT, HIDDEN, "*") for pattern, _ in rule.ranges)
    return isinstance(rule, Graded) and bool(rule.output_layers)


def check_names(rule: RangeRule | None, names: Sequence[str]) -> None:
    """Raise a ValueError for a pattern that matches none of the names."""
    if isinstance(rule, ByLayer):
        for pattern, _ in rule.ranges:
            if pattern not in (OUTPUT, HIDDEN):
                check_pattern("kappa", pattern, names, (OUTPUT, HIDDEN))
    elif isinstance(rule, Graded):
        for pattern in rule.output_layers:
            check_pattern("output_layers", pattern, names)


def check_effect(rule: RangeRule | None, tensors: Iterable[tuple[Sequence[str], bool | None, str]]) -> None:
    """Raise a ValueError for a name or a pattern of a rule by layer that changes nothing.

    "output", "hidden" and "*" may be without effect, so that one mapping fits networks of any size.

    Args:
        rule: the range rule.
        tensors: the names of each tensor, whether it belongs to an output layer, and the reason if it has no bound.
    """
    if not isinstance(rule, ByLayer):
        return
    decided: dict[str, list[tuple[str, str]]] = {pattern: [] for pattern, _ in rule.ranges}
    for names, is_output, reason in tensors:
        first = next((pattern for pattern in decided if _matches(pattern, names, is_output)), None)
        if first is not None:
            decided[first].append((names[0], reason))
    for pattern, matched in decided.items():
        if pattern in (OUTPUT, HIDDEN, "*"):
            continue
        if not matched:
            raise ValueError(
                f"kappa: {pattern!r} has no effect, because earlier keys match all of its tensors; the first match "
                "applies, so put it before them"
            )
        if all(reason for _, reason in matched):
            name, reason = matched[0]
            raise ValueError(
                f"kappa: {pattern!r} matches only tensors without a bound ({name}: {reason}); "
                "bounds={name: number, '*': 'fan_in'} sets one"
            )


def names_tensor(rule: RangeRule | None, names: Sequence[str]) -> bool:
    """Whether a rule by layer has a name or a pattern for a tensor, rather than its role."""
    return isinstance(rule, ByLayer) and any(_matches(pattern, names, None) for pattern, _ in rule.ranges)


def named_as_output(rule: RangeRule | None, names: Sequence[str]) -> bool:
    """Whether a graded rule names a tensor as part of an output layer."""
    return isinstance(rule, Graded) and any(fnmatchcase(name, p) for name in names for p in rule.output_layers)


def _matches(pattern: str, names: Sequence[str], is_output: bool | None) -> bool:
    if pattern not in names and pattern in (OUTPUT, HIDDEN):
        return is_output == (pattern == OUTPUT)  # unknown: neither
    return any(fnmatchcase(name, pattern) for name in names)


def _interval(first: str, second: str, low: object, high: object) -> tuple[float, float]:
    low, high = check_number(first, low), check_number(second, high)
    if low > high:
        raise ValueError(f"{second}: got {high:g}, expected at least {first}, {low:g}")
    return low, high


def _text(number: float) -> str:
    """The shortest exact text of a number."""
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)


def _output_text(output: float | tuple[float, float]) -> str:
    return "-".join(map(_text, output)) if isinstance(output, tuple) else _text(output)


_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
_EXAMPLES = "expected a positive number, graded, graded(0.5, 8, output=2), or hidden=5,output=1"


def _parse_graded(text: str) -> Graded:
    inner = re.fullmatch(r"graded(?:\((.*)\))?", text)
    if inner is None:
        raise ValueError(f"kappa: got {text!r}, {_EXAMPLES}")
    found: dict[str, object] = {}
    # A comma ends an argument if another one follows, or the end: names of layers may contain commas.
    positional, _, rest = re.fullmatch(r"([^=]*?)(,?)(\s*\w+\s*=.*)?", inner.group(1) or "").groups()  # type: ignore[union-attr]
    numbers = [part for part in map(str.strip, positional.split(",")) if part]
    if len(numbers) > 2:
        raise ValueError(f"kappa: got {text!r}, {_EXAMPLES}")
    found.update({name: _number(text, part) for name, part in zip(("low", "high"), numbers, strict=False)})
    for part in filter(None, re.split(r",(?=\s*\w+\s*=)|,\s*$", rest or "")):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in ("low", "high", "output", "output_layers", "layer_offset"):
            raise ValueError(
                f"kappa: got {part.strip()!r} in {text!r}, expected low, high, output, output_layers or layer_offset"
            )
        if name in found:
            raise ValueError(f"kappa: got {name} twice in {text!r}, expected each argument once")
        found[name] = _parse_argument(text, name, value)
    return graded(**found)  # type: ignore[arg-type]


def _parse_argument(text: str, name: str, value: str) -> object:
    """The value of one argument of `graded`."""
    if name == "output_layers":
        return value.split("|")
    if name == "layer_offset":
        return int(value) if value.isdigit() else _number(text, value)
    interval = re.fullmatch(f"({_NUMBER})-({_NUMBER})", value) if name == "output" else None
    if interval:
        return float(interval[1]), float(interval[2])
    if name == "output" and _is_name(value):
        return value
    return _number(text, value)


def _is_name(value: str) -> bool:
    """Whether a value is a name or a glob pattern of a layer, such as `head.*`; `-1` and `nan` are numbers."""
    try:
        float(value)
    except ValueError:
        return bool(re.match(r"[A-Za-z_*?\[]|\d+\.[^\d]", value))
    return False


def _number(text: str, part: str) -> float:
    try:
        return float(part)
    except ValueError:
        raise ValueError(f"kappa: got {text!r}, {_EXAMPLES}") from None
