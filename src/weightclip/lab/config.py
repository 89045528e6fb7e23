"""Typed configurations: the annotation of each field contains its type, constraint and help.

    epochs: Annotated[int, AtLeast(1), Help("epochs per stage", PROBLEM)] = 50

`check_fields` checks configurations, and the command line generates its options, from these annotations.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cache, wraps
from importlib.resources import files
from types import MappingProxyType, NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from weightclip._ranges import ByLayer, Graded, Kappa, names_tensors, parse_kappa, read_kappa
from weightclip._renamed import new_fields
from weightclip._validation import check_truth
from weightclip.lab.constraints import Constraint, FilePath, Finite, OneOf, Seed
from weightclip.lab.methods import NAMED, RANGES, TORCH, Components, Method, choose_settings, parse_method

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

METHOD, PROBLEM, ALGORITHM, OUTPUT = "method", "problem", "algorithm", "output"
GROUPS = (METHOD, PROBLEM, ALGORITHM, OUTPUT)
"""Groups of options in `--help`."""

KAPPA = "KAPPA"
"""Metavar of values that are a number or a rule for ranges."""

BOUNDS = ("paper", "fan_in")
"""Clipping bounds: by the shape and order of tensors, as in the paper's code, or by the type of layer."""

OTHER = "settings."
"""Prefix of table columns for settings without their own configuration field."""


@dataclass(frozen=True)
class Help:
    """The help text of a field, its group in `--help`, and its metavar."""

    text: str
    group: str = ALGORITHM
    metavar: str = ""


@dataclass(frozen=True)
class FieldType:
    """A field of a configuration, read from its annotation.

    Args:
        name: name of the field.
        kind: type of the field, without None.
        optional: whether the field can be None.
        constraint: accepted values.
        help: help text of the command line.
        example: default value, as an example in error messages.
    """

    name: str
    kind: Any
    optional: bool
    constraint: Constraint | None
    help: Help
    example: Any

    @property
    def is_list(self) -> bool:
        return get_origin(self.kind) is tuple

    @property
    def is_mapping(self) -> bool:
        origin = get_origin(self.kind)
        return isinstance(origin, type) and issubclass(origin, Mapping)

    @property
    def choices(self) -> tuple[Any, ...]:
        """The accepted values if they are a finite set, else empty."""
        return self.constraint.values if isinstance(self.constraint, OneOf) else ()

    def check(self, value: Any) -> Any:
        """Return the value as a plain object of the field's type. Raise a ValueError if it is not accepted."""
        if value is None and self.optional:
            return None
        if self.kind is bool:
            return check_truth(self.name, value)
        if self.is_mapping:
            if isinstance(value, Mapping):
                return dict(value)
            raise ValueError(f"{self.name}: got {value!r}, expected names and numbers, such as {{'beta1': 0.5}}")
        if self.is_list:
            if isinstance(value, str) or not isinstance(value, Iterable):
                raise ValueError(f"{self.name}: got {value!r}, expected whole numbers, such as {self.example}")
            return tuple(self._check_one(one, get_args(self.kind)[0]) for one in value)
        return self._check_one(value, self.kind)

    def _check_one(self, value: Any, kind: type) -> Any:
        if kind is str and not isinstance(value, str) and not isinstance(self.constraint, FilePath):
            raise ValueError(f"{self.name}: got {value!r}, expected a name")
        constraint = self.constraint or (None if kind is str else Finite())
        return value if constraint is None else constraint.check(self.name, value, kind)


def field_types(config: type[Any]) -> Mapping[str, FieldType]:
    """The fields of a configuration's dataclass by name."""
    return _field_types(config)  # type: ignore[arg-type]  # mypy: a type is not Hashable


_METADATA = {"help": "", "group": ALGORITHM, "metavar": ""}


@cache
def _field_types(config: type[Any]) -> Mapping[str, FieldType]:
    hints = get_type_hints(config, include_extras=True)
    found = {}
    for one in fields(config):
        kind, *marks = get_args(hints[one.name]) if get_origin(hints[one.name]) is Annotated else (hints[one.name],)
        optional = get_origin(kind) in (Union, UnionType) and NoneType in get_args(kind)
        if optional:
            (kind,) = (part for part in get_args(kind) if part is not NoneType)
        constraints = [mark for mark in marks if isinstance(mark, Constraint)]
        # Configurations of other packages may have their help in the field's metadata.
        from_metadata = Help(*(one.metadata.get(key, other) for key, other in _METADATA.items()))
        text = next((mark for mark in marks if isinstance(mark, Help)), from_metadata)
        example = None if one.default is MISSING else one.default
        found[one.name] = FieldType(one.name, kind, optional, next(iter(constraints), None), text, example)
    return MappingProxyType(found)


C = TypeVar("C")


def check_fields(config: C) -> C:
    """Return the configuration with every field as a plain object of its type. A ValueError names an invalid field.

    `kappa` can be a rule for ranges and is checked with the method (`resolve_method`).
    """
    found = {
        name: getattr(config, name) if one.help.metavar == KAPPA else one.check(getattr(config, name))
        for name, one in field_types(type(config)).items()
    }
    return replace(config, **found)  # type: ignore[type-var]


@dataclass(frozen=True)
class MethodConfig:
    """A problem, a method with its settings, and a seed. Experiments add their own fields.

    Class attributes:
        experiment: name of the experiment.
        execution_fields: fields that do not change the numbers of a run, such as the device.
        added_fields: fields that records of older versions do not have; records have them if they differ from their
            default, so that adding a field changes no identity.
    """

    experiment: ClassVar[str] = ""
    execution_fields: ClassVar[tuple[str, ...]] = ()
    added_fields: ClassVar[tuple[str, ...]] = ("kappa_rule",)

    problem: Annotated[str, Help("the problem")] = ""
    method: Annotated[str, Help("optimizer+regularizer+..., for example adam, adam+wc, adam+l2init", METHOD)] = (
        "adam+wc"
    )
    lr: Annotated[float | None, RANGES["lr"], Help("step size", METHOD)] = None
    kappa: Annotated[
        float | None,
        RANGES["kappa"],
        Help(
            "clipping range in units of s_l (wc, madam): a number, graded, graded(0.5,8,output=1) or hidden=5,output=1",
            METHOD,
            KAPPA,
        ),
    ] = None
    kappa_rule: Annotated[str | None, Help("rule for ranges, if kappa is not a number")] = None
    decay: Annotated[float | None, RANGES["decay"], Help("lambda of l2, l2init and sp", METHOD)] = None
    sigma: Annotated[float | None, RANGES["sigma"], Help("standard deviation of the noise of sp", METHOD)] = None
    settings: Annotated[Mapping[str, float], Help("other settings of the optimizer, for example beta2=0.9", METHOD)] = (
        field(default_factory=dict, hash=False)
    )
    seed: Annotated[int, Seed(), Help("random seed")] = 0

    @property
    def is_resolved(self) -> bool:
        """Whether the configuration was returned by `resolve`."""
        return "_resolved" in vars(self)

    def components(self) -> Components[Any]:
        """The optimizers and regularizers that the method can have."""
        return TORCH

    def parsed_method(self) -> Method[Any]:
        """The optimizer and the regularizers. An unknown name raises a ValueError."""
        return parse_method(self.method, self.components())

    def missing_setting_hint(self, method: Method[Any], setting: str) -> str:
        """Text that is added to the error for a setting without a value."""
        return ""

    def all_settings(self) -> dict[str, float]:
        """Every setting of the method of a resolved configuration by name."""
        return {**self.named_settings(), **self.settings}

    def named_settings(self) -> dict[str, float]:
        """The settings with their own field that are not None."""
        return {name: getattr(self, name) for name in NAMED if getattr(self, name) is not None}

    def clipping_range(self) -> Kappa | None:
        """The `kappa` argument of `clip_weights`, of a resolved configuration."""
        return self.kappa if self.kappa_rule is None else parse_kappa(self.kappa_rule)

    def clipping_bounds(self, bounds: str | None, default: str) -> str | None:
        """The clipping bounds; None for a method that does not clip, so that they do not change its identity."""
        return bounds or default if self.parsed_method().clips else None

    def small_network(self) -> tuple[nn.Module, str] | None:
        """A network with the parameter names of the run's own, and its clipping bounds; None if the names are unknown.

        It shows before the data is loaded whether the names in `kappa` exist. Its sizes are arbitrary.
        """
        return None

    def facts(self) -> dict[str, Any]:
        """Everything that determines the numbers of the run, JSON-compatible: field -> value."""
        left_out = {name for name in self.added_fields if getattr(self, name) == getattr(type(self), name)}
        left_out.update(self.execution_fields)
        facts = {name: value for name, value in asdict(self).items() if name not in left_out}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in facts.items()}

    def make_optimizer(self, model: nn.Module, bounds: Any = None, **options: Any) -> Optimizer:
        """An optimizer of all parameters with the regularizers that act after every step.

        Args:
            model: the module whose parameters are optimized.
            bounds: clipping bounds; None is "fan_in".
            options: see `optimizers.make_optimizer`.
        """
        from weightclip.lab.optimizers import make_optimizer

        settings: dict[str, Any] = dict(self.all_settings())
        if self.kappa_rule is not None:
            settings["kappa"] = self.clipping_range()
        method = self.parsed_method()
        return make_optimizer(model, method, settings, seed=self.seed, bounds=bounds or "fan_in", **options)


M = TypeVar("M", bound=MethodConfig)


def resolver(function: Callable[[M], M]) -> Callable[[M], M]:
    """Decorate the `resolve` of an experiment, so that a resolved configuration is returned unchanged.

    A name in `kappa` that the network does not have raises a ValueError.
    """

    @wraps(function)
    def resolve(config: M) -> M:
        if config.is_resolved:
            return config
        found = function(config)
        if found.kappa_rule is not None and names_tensors(read_kappa(parse_kappa(found.kappa_rule))[1]):
            # Without the fields that a search varies, so that the configurations of a sweep share one check.
            _check_names(replace(found, seed=0, lr=None, decay=None, sigma=None, settings={}))
        return mark_resolved(found)

    return resolve


@cache
def _check_names(config: MethodConfig) -> None:
    """Raise a ValueError for a name or a pattern in `kappa` that changes nothing. Imports PyTorch."""
    from weightclip.lab.optimizers import check_range_names

    if (network := config.small_network()) is not None:
        check_range_names(*network, config.clipping_range())


def mark_resolved(config: M, source: M | None = None) -> M:
    """Mark a configuration as resolved, in `resolver` or after copying one, `source`, with other resolved values."""
    names = {one.name for one in fields(config)}
    marks = {name: value for name, value in vars(source or config).items() if name not in names}
    for name, value in {**marks, "_resolved": True}.items():
        object.__setattr__(config, name, value)  # not a field: `replace` drops it, `pickle` keeps it
    return config


def resolve_method(config: M, table: Mapping[str, Mapping[str, Any]]) -> M:
    """Check the method and return the configuration with its canonical name and every setting.

    Args:
        config: the configuration.
        table: method -> its best settings, the defaults (`methods.default_settings`).
    """
    method = config.parsed_method()
    kappa, rule = split_kappa(config.kappa, config.kappa_rule)
    for name in config.settings:
        if name in NAMED:
            raise ValueError(f"{name}: got it in settings (--set), expected it as an argument (--{name})")
    given: dict[str, Any] = {**replace(config, kappa=kappa).named_settings(), **config.settings}
    if rule is not None:
        if "kappa" not in method.settings or "kappa" in method.optimizer.settings:
            raise ValueError(f"kappa: got {rule!r}, but {method.name} does not take ranges; wc does")
        given["kappa"] = 1.0  # a placeholder; the rule contains the ranges
    found = choose_settings(method, table, given, lambda name: config.missing_setting_hint(method, name))
    named: dict[str, Any] = {name: found.pop(name, None) for name in NAMED}
    if rule is not None:
        named["kappa"] = None
    return replace(config, method=method.name, kappa_rule=rule, **named, settings=found)


def fill(config: M, defaults: Mapping[str, Any]) -> M:
    """Return the configuration with defaults for the fields that are None."""
    return replace(config, **{name: value for name, value in defaults.items() if getattr(config, name) is None})


def setting_columns(method: Method[Any]) -> list[str]:
    """The settings of a method as columns of tables: `lr`, `settings.beta1`."""
    return [name if name in NAMED else f"{OTHER}{name}" for name in method.setting_names]


def split_kappa(kappa: Any, rule: str | None) -> tuple[Any, str | None]:
    """Split kappa into the fields `kappa` and `kappa_rule`: a number and None, or None and the rule as text.

    Args:
        kappa: a number, a rule for ranges (`weightclip.graded()`, a mapping), either of them as text, or None.
        rule: text of a rule that has already been split.
    """
    if kappa is None:
        return None, None if rule is None else str(parse_kappa(rule))
    if isinstance(kappa, str):
        kappa = parse_kappa(kappa)
    if isinstance(kappa, (Graded, ByLayer, Mapping)):
        return None, str(read_kappa(kappa)[1])
    return kappa, None


def rename_settings(config: type[Any], settings: Mapping[str, Any], stacklevel: int = 2) -> dict[str, Any]:
    """Settings under the current names of a configuration's fields. Old names raise a DeprecationWarning."""
    return new_fields(getattr(config, "experiment", ""), settings, stacklevel + 1)


def rename_presets(config: type[Any], presets: Mapping[str, Any]) -> dict[str, Any]:
    """The tables `grid` and `best` of a TOML file with the current names of a configuration's fields."""

    def renamed(table: Any, depth: int) -> Any:
        """Rename the keys at a depth: 0 for `grid`, 2 (problem, method) for `best`."""
        if not isinstance(table, Mapping):
            return table
        if depth == 0:
            return rename_settings(config, table, stacklevel=4)
        return {name: renamed(inner, depth - 1) for name, inner in table.items()}

    found = dict(presets)
    if isinstance(grid := presets.get("grid"), Mapping):
        found["grid"] = renamed(grid, 0)
        if "methods" in grid:
            found["grid"]["methods"] = renamed(grid["methods"], 1)
    if "best" in presets:
        found["best"] = renamed(presets["best"], 2)
    return found


_SYNONYMS = (
    ("lr", "learning-rate", "step-size", "stepsize"),
    ("steps", "frames", "epochs", "samples", "timesteps", "total-timesteps", "num-steps", "iterations", "length"),
    ("kappa", "kappas", "clip", "clip-range", "bound", "range"),
    ("decay", "weight-decay", "lambda", "l2"),
    ("sigma", "noise-std", "std"),
    ("method", "methods", "optimizer", "optimizers", "optim", "algorithm", "algo"),
    ("env", "envs", "env-id", "environment", "gym-id", "game", "games"),
    ("num-envs", "n-envs", "environments"),
    ("hidden", "layers", "units", "net-arch", "hidden-sizes"),
    ("batch-size", "batch", "minibatch-size"),
    ("buffer-size", "memory", "replay-size"),
    ("clip-coef", "clip-range", "clip-eps"),
    ("gae-lambda", "lam", "lambda"),
    ("update-epochs", "n-epochs", "epochs"),
    ("seed", "seeds", "num-seeds", "n-seeds"),
    ("out", "output", "output-dir", "save-dir", "results"),
    ("data-dir", "data", "dataset", "data-path"),
    ("wandb", "wandb-project", "track"),
    ("workers", "jobs", "num-workers", "n-jobs", "processes"),
)
"""Synonyms of fields. The first one that the configuration has is suggested."""


def nearest_name(name: str, known: Sequence[str]) -> str | None:
    """The field that is a synonym of an unknown name, has a similar spelling or contains it, or None."""
    plain = name.replace("_", "-")
    fields = {one.replace("_", "-"): one for one in known}
    for names in _SYNONYMS:
        if plain in names:
            for other in names:
                if other in fields and other != plain:
                    return fields[other]
    near = difflib.get_close_matches(plain, fields, n=1, cutoff=0.7)
    within = [one for one in fields if plain in one.split("-")]
    return fields[(near or within)[0]] if near or within else None


def check_field(argument: str, name: str, known: Sequence[str]) -> None:
    """Raise a ValueError that suggests the nearest name if `name` is unknown."""
    if name not in known:
        raise ValueError(f"{argument}: got {name!r}, {expected_names(name, known)}")


def expected_names(name: str, known: Sequence[str]) -> str:
    """The end of the error for an unknown name: the known ones and the nearest of them."""
    near = nearest_name(name, known)
    return f"expected one of {', '.join(known)}" + (f"; did you mean {near!r}?" if near else "")


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(text: str) -> dict[str, Any]:
    """Parse TOML. A ValueError gives the position of a syntax error."""
    return tomllib.loads(text)


@cache
def paper_tables(package: str) -> dict[str, Any]:
    """The tables of a package's `paper.toml`."""
    return read_toml((files(package) / "paper.toml").read_text(encoding="utf-8"))


def commands(package: str) -> dict[str, Any]:
    """The tables `examples` and `reproductions` of a package's `paper.toml`."""
    return {name: paper_tables(package)[name] for name in ("examples", "reproductions")}


def methods_help(paper: Sequence[str], components: Components[Any], optimizers: str = "") -> str:
    """The methods of an experiment, as text for the help of commands.

    Args:
        paper: the paper's methods.
        components: the parts of its methods.
        optimizers: text that replaces the names of all optimizers.
    """
    first = optimizers or ", ".join(components.optimizers)
    regularizers = ", ".join(components.regularizers)
    return f"methods:\n  {first}, with +regularizer: {regularizers}\n  the paper's: {', '.join(paper)}"


TORCH_OPTIMIZERS = "an optimizer of torch.optim in lower case, or madam"
"""The optimizers of methods that use PyTorch, for `methods_help`."""


class IncompatibleError(ValueError):
    """Incompatible values of the axes, which a sweep over their product skips."""
