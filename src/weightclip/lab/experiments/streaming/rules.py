"""Update rules: each optimizer and regularizer as scalar functions of one weight.

A new method needs nothing else. The fused backend compiles these functions into one pass over the weights; here they
are plain Python. The arguments of a function name the quantities that it reads:

    w        the weight                       w0      its initial value (see `Rule.snapshot`)
    g        its gradient                     step    the number of this update: 1, 2, ...
    s        1/sqrt(fan_in) of its layer      noise   a draw from N(0, 1), new for each weight and step
    box      kappa s, rounded toward 0        rms     the initial root mean square of its tensor

Any other argument is a state (named in `Rule.state`, 0 at the start) or a setting (`lr`, `kappa`, `decay`, ...),
with its default value if it has one. Functions can use arithmetic, comparisons, conditional expressions, `abs`, `min`,
`max`, `sqrt`, `exp`, `log`, `tanh` and `sign` from this module, and other functions of the same kind.
"""

from __future__ import annotations

import hashlib
import inspect
import linecache
import math
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import Any

from weightclip._validation import check_name
from weightclip.lab import registry
from weightclip.lab.methods import NAMED, Components, Method, parse_method

READABLE = ("w", "g", "w0", "step", "s", "noise", "box", "rms")
"""Quantities that every function can read; any other argument is a state or a setting."""

_CACHED_SOURCE = re.compile(r"^<(.*) [0-9a-f]{12}>$")
"""The name under which `linecache` holds the source of a rules file."""

sqrt, exp, log, tanh = math.sqrt, math.exp, math.log, math.tanh


def sign(x: float) -> float:
    """-1, 0 or 1."""
    return float(x > 0) - float(x < 0)


@dataclass(frozen=True)
class Rule:
    """An optimizer or a regularizer, as functions of one weight.

    Args:
        name: name in methods, for example "adam".
        before: g <- before(w, g, ...), the gradient that the optimizer receives.
        update: w, *state <- update(w, g, *state, ...), the optimizer's step. Regularizers have none.
        after: w <- after(w, ...), applied after the step.
        state: names of the numbers kept for each weight, initially 0.
        snapshot: when w0 is taken: before the first update ("start"), or after it and before `after` ("first update").
    """

    name: str
    before: Callable[..., Any] | None = None
    update: Callable[..., Any] | None = None
    after: Callable[..., Any] | None = None
    state: tuple[str, ...] = ()
    snapshot: str = "start"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z]\w*", self.name):
            raise ValueError(f"rule: got the name {self.name!r}, expected letters, digits and _")
        for kind in ("before", "update", "after"):
            if getattr(self, kind) is not None and not isinstance(getattr(self, kind), FunctionType):
                raise self._error(f"got {getattr(self, kind)!r} as {kind}, expected a function")
        if not self.functions:
            raise self._error("got no function, expected before, update or after")
        if not isinstance(self.state, tuple):
            raise self._error(f"got the state {self.state!r}, expected a tuple of names")
        for name in self.state:
            if not isinstance(name, str) or not name.isidentifier() or name in READABLE:
                raise self._error(f"got the state {name!r}, expected a name other than {', '.join(READABLE)}")
        if self.update is None and self.state:
            raise self._error("got a state, expected one only together with an update")
        if self.snapshot not in ("start", "first update"):
            raise self._error(f"got the snapshot {self.snapshot!r}, expected 'start' or 'first update'")
        for parameter in self._parameters():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise self._error(f"got the argument {str(parameter)!r}, expected named arguments without * or **")
            default = parameter.default
            if default is not parameter.empty and (isinstance(default, bool) or not isinstance(default, int | float)):
                raise self._error(f"got {default!r} as the default of {parameter.name}, expected a number")

    def reads(self, name: str) -> bool:
        """Whether one of its functions has an argument `name`."""
        return any(parameter.name == name for parameter in self._parameters())

    def _error(self, message: str) -> ValueError:
        return ValueError(f"rule {self.name}: {message}")

    def _parameters(self) -> Iterator[inspect.Parameter]:
        for function in self.functions:
            yield from inspect.signature(function).parameters.values()

    @property
    def base(self) -> str:
        """The name in tables of best settings."""
        return self.name

    @property
    def options(self) -> tuple[str, ...]:
        """Empty, because every setting of a rule has a value."""
        return ()

    @property
    def built_in(self) -> bool:
        """Whether this module defines the rule."""
        return is_built_in(self)

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The functions among `before`, `update` and `after` that are not None."""
        return tuple(f for f in (self.before, self.update, self.after) if f is not None)

    @property
    def settings(self) -> dict[str, float | None]:
        """Setting -> default, or None if it has no default."""
        found: dict[str, float | None] = {}
        for parameter in self._parameters():
            if parameter.name not in READABLE and parameter.name not in self.state:
                default = None if parameter.default is parameter.empty else float(parameter.default)
                found[parameter.name] = default if found.get(parameter.name) is None else found[parameter.name]
        if self.reads("box"):
            found.setdefault("kappa", None)
        return found


def _sgd(w, g, lr):  # type: ignore[no-untyped-def]
    return w - lr * g


def _adam(w, g, m, v, lr, step, beta1=0.9, beta2=0.999, eps=1e-8):  # type: ignore[no-untyped-def]
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    size = lr / (1 - beta1**step)
    root = 1 / sqrt(1 - beta2**step)
    return w - size * m / (sqrt(v) * root + eps), m, v


def _madam(w, g, v, lr, step, beta=0.999, max_update=10.0):  # type: ignore[no-untyped-def]
    v = beta * v + (1 - beta) * g * g
    root = sqrt(v / (1 - beta**step))
    g_hat = min(max(g / root, -max_update), max_update) if v > 0 else 0.0
    return w * exp(-lr * g_hat * sign(w)), v


def _madam_clip(w, rms, kappa):  # type: ignore[no-untyped-def]
    return min(max(w, -kappa * rms), kappa * rms)


def _decayed(w, g, decay):  # type: ignore[no-untyped-def]
    return g + decay * w


def _decayed_to_initial(w, g, w0, decay):  # type: ignore[no-untyped-def]
    return g + 2 * decay * (w - w0)


def _pulled(w, w0, lr, decay):  # type: ignore[no-untyped-def]
    return w + lr * decay * w0


def _perturbed(w, noise, lr, sigma):  # type: ignore[no-untyped-def]
    return w - lr * sigma * noise


def _shrunk_and_perturbed(w, noise, decay, sigma):  # type: ignore[no-untyped-def]
    return (1 - decay) * w + sigma * noise


def _clipped(w, box):  # type: ignore[no-untyped-def]
    return min(max(w, -box), box)


OPTIMIZERS: Mapping[str, Rule] = MappingProxyType(
    {
        "sgd": Rule("sgd", update=_sgd),
        "adam": Rule("adam", update=_adam, state=("m", "v")),
        "madam": Rule("madam", update=_madam, after=_madam_clip, state=("v",)),
    }
)

PAPER, ORIGINAL = "paper", "original"
"""Variants of L2 Init and Shrink & Perturb: as in the paper's code, and as their authors define them."""

REGULARIZERS: Mapping[str, Mapping[str, Rule]] = MappingProxyType(
    {
        "l2": {PAPER: (l2 := Rule("l2", before=_decayed)), ORIGINAL: l2},
        "l2init": {
            PAPER: Rule("l2init", before=_decayed, after=_pulled, snapshot="first update"),
            ORIGINAL: Rule("l2init", before=_decayed_to_initial),
        },
        "sp": {
            PAPER: Rule("sp", before=_decayed, after=_perturbed),
            ORIGINAL: Rule("sp", after=_shrunk_and_perturbed),
        },
        "wc": {PAPER: (wc := Rule("wc", after=_clipped)), ORIGINAL: wc},
    }
)
"""Regularizer -> variant -> rule."""


def location(function: Callable[..., Any], line: int = 1) -> str:
    """The file and line of a function, or of a line in it: `mine.py, line 7`."""
    code = function.__code__
    file = _CACHED_SOURCE.sub(r"\1", code.co_filename)
    return f"{file}, line {code.co_firstlineno + line - 1}"


def is_built_in(rule: Rule) -> bool:
    """Whether this module defines the rule."""
    return rule in OPTIMIZERS.values() or any(rule in variants.values() for variants in REGULARIZERS.values())


@cache
def plugged_rules() -> dict[str, Rule]:
    """Rules of other packages, by name."""
    return registry.plugins(registry.METHODS, Rule)


def load_rules(path: str | Path) -> Mapping[str, Rule]:
    """The rules that a Python file defines, by name. The file is executed once per content."""
    path = Path(path)
    if path.suffix != ".py" or not path.is_file():
        raise ValueError(f"rules: got {str(path)!r}, expected a Python file")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"rules: got {str(path)!r}, which is not UTF-8 text; expected a Python file") from error
    return _execute_rules(path, text)


@cache
def _execute_rules(path: Path, text: str) -> Mapping[str, Rule]:
    # linecache stores the source under a name with its hash, so that the kernel is compiled from this text even if
    # the file has changed since.
    name = f"<{path} {hashlib.sha256(text.encode()).hexdigest()[:12]}>"  # see _CACHED_SOURCE
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    try:
        exec(compile(text, name, "exec"), module)
    except (Exception, SystemExit) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ValueError(f"rules: {_where(path, name, error)}: {type(error).__name__}: {reason}") from error
    rules = {rule.name: rule for rule in module.values() if isinstance(rule, Rule)}
    for rule in rules.values():
        if (rule.name in OPTIMIZERS or rule.name in REGULARIZERS) and not is_built_in(rule):
            where = location(rule.functions[0])
            raise ValueError(f"rules: {where}: got the name {rule.name!r}, which is built in; expected another name")
    rules = {name: rule for name, rule in rules.items() if not is_built_in(rule)}
    if not rules:
        raise ValueError(f"rules: {path} defines no Rule, expected for example NAME = Rule('name', update=function)")
    return MappingProxyType(rules)


def _where(path: Path, name: str, error: BaseException) -> str:
    """The file and the line that raised an error."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    return str(path) if line is None else f"{path}, line {line}"


def rule_components(variant: str = PAPER, external: Mapping[str, Rule] = MappingProxyType({})) -> Components[Rule]:
    """The rules that methods are made of.

    Args:
        variant: variant of L2 Init and Shrink & Perturb.
        external: additional rules, of the user or of other packages.
    """
    check_name("variant", variant, (PAPER, ORIGINAL))
    return Components(
        {**OPTIMIZERS, **{name: rule for name, rule in external.items() if rule.update is not None}},
        {
            **{name: rules[variant] for name, rules in REGULARIZERS.items()},
            **{name: rule for name, rule in external.items() if rule.update is None},
        },
    )


def parse_rules(name: str, components: Components[Rule] | None = None) -> Method[Rule]:
    """Parse a method such as `adam+l2init+wc`. Unknown names and incompatible rules raise a ValueError."""
    method = parse_method(name, components or rule_components())
    if len({rule.snapshot for rule in method.parts if rule.reads("w0")}) > 1:
        raise ValueError(f"method: got {name!r}, expected parts that take w0 at the same time")
    return method


def external_rules(method: Method[Rule]) -> tuple[Rule, ...]:
    """The rules of a method that this module does not define."""
    return tuple(rule for rule in method.parts if not rule.built_in)


def state_hint(method: Method[Rule], setting: str) -> str:
    """A hint for users' rules: an argument without a value may be a missing state."""
    for rule in external_rules(method):
        for function in rule.functions:
            if setting in inspect.signature(function).parameters and setting not in NAMED:
                states = ", ".join(rule.state) or "none"
                return f", or add it to the states of rule {rule.name} ({location(function)}; its states: {states})"
    return ""
