import ast
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weightclip as wc
from weightclip._optimizer_class import bounds_from_shapes
from weightclip.bounds import Bound, fan_in_bound, named_tensors, resolve_bounds

LARGE_LAYERS: dict[str, nn.Module] = {
    "linear": nn.Linear(200, 300),
    "bilinear": nn.Bilinear(50, 20, 300),
    "conv1d": nn.Conv1d(20, 300, 5),
    "conv2d": nn.Conv2d(8, 300, 3),
    "conv2d grouped": nn.Conv2d(8, 304, 3, groups=4),
    "conv3d": nn.Conv3d(4, 300, 3),
    "conv_transpose1d": nn.ConvTranspose1d(300, 300, 5),
    "conv_transpose2d": nn.ConvTranspose2d(30, 300, 3),
    "conv_transpose2d grouped": nn.ConvTranspose2d(32, 304, 3, groups=2),
    "conv_transpose3d": nn.ConvTranspose3d(30, 300, 2),
    "rnn": nn.RNN(30, 100, num_layers=2, bidirectional=True),
    "lstm with projection": nn.LSTM(30, 100, proj_size=60),
    "gru": nn.GRU(30, 100),
    "rnn cell": nn.RNNCell(30, 300),
    "lstm cell": nn.LSTMCell(30, 100),
    "gru cell": nn.GRUCell(30, 100),
    "attention": nn.MultiheadAttention(64, 4),
    "attention with other keys": nn.MultiheadAttention(64, 4, kdim=32, vdim=16),
}


@pytest.mark.parametrize("layer", LARGE_LAYERS.values(), ids=LARGE_LAYERS.keys())
def test_fan_in_is_the_bound_of_pytorchs_initialization(layer: nn.Module) -> None:
    """The largest of n uniform draws is below 1 - 20/n of the bound with probability e^-20."""
    bounds = resolve_bounds(layer)
    for name, tensor in named_tensors(layer).items():
        s, largest = bounds[name].s, tensor.abs().max().item()
        assert s is not None
        if "attention" in str(type(layer)).lower() and "bias" in name:
            assert largest == 0
        else:
            assert s * (1 - 20 / tensor.numel()) < largest <= s * (1 + 1e-6), name


def test_a_zero_bias_of_attention_uses_its_weights_bound() -> None:
    bounds = resolve_bounds(nn.MultiheadAttention(64, 4))
    assert bounds["in_proj_bias"].s == bounds["in_proj_weight"].s == math.sqrt(6 / (64 + 3 * 64))
    assert bounds["out_proj.bias"].s == bounds["out_proj.weight"].s == 1 / 8
    bounds = resolve_bounds(nn.MultiheadAttention(64, 4, kdim=32, vdim=16))
    assert bounds["in_proj_bias"].s == min(bounds[f"{name}_proj_weight"].s or 0 for name in "qkv")


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.zeros(1, 3))
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh())
        self.norm = nn.LayerNorm(16)
        self.words = nn.Embedding(5, 16)
        self.head = nn.Linear(16, 3)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x)))


def test_skipped_tensors_have_a_reason() -> None:
    bounds = resolve_bounds(Policy())
    left = {name: bound.reason for name, bound in bounds.items() if bound.s is None}
    assert set(left) == {"log_std", "norm.weight", "norm.bias", "words.weight", "frozen.weight", "frozen.bias"}
    assert left["log_std"] == "no bound rule for Policy (see register_bound)"
    assert "normalization" in left["norm.bias"]
    assert "embedding" in left["words.weight"]
    assert "frozen" in left["frozen.weight"]


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(4), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.RMSNorm(4)]
)
def test_normalization_layers_are_skipped(norm: nn.Module) -> None:
    assert all(bound.s is None for bound in resolve_bounds(norm).values())


def test_init_measures_weights_and_gives_zeros_their_fan_in_bound() -> None:
    layer = nn.Linear(16, 4)
    nn.init.orthogonal_(layer.weight, math.sqrt(2))
    nn.init.zeros_(layer.bias)
    bounds = resolve_bounds(layer, "init")
    assert bounds["weight"] == Bound(layer.weight.abs().max().item(), "init")
    assert bounds["bias"] == Bound(0.25, "init (zeros: fan_in)")


def test_init_with_weights_that_are_not_finite_raises_an_error() -> None:
    layer = nn.Linear(2, 2)
    layer.weight.data[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"weight: bound by rule 'init': got nan"):
        resolve_bounds(layer, "init")


def test_paper_bounds_depend_only_on_shape_and_order() -> None:
    """BatchNorm's scale and shift use the fan_in of the preceding convolution; log_std (1, A) counts as a weight."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 2))
    bounds = resolve_bounds(model, "paper")
    assert [bounds[n].s for n in ("0.weight", "1.weight", "1.bias")] == [1 / math.sqrt(27)] * 3
    assert [bounds[n].s for n in ("3.weight", "3.bias")] == [1 / math.sqrt(8)] * 2
    policy = resolve_bounds(Policy(), "paper")
    assert policy["log_std"].s == 1 / math.sqrt(3)
    assert policy["norm.bias"].s == policy["body.0.weight"].s == 1 / math.sqrt(8)


def test_paper_bounds_skip_tensors_before_the_first_weight() -> None:
    assert resolve_bounds(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 1)), "paper")["0.weight"].s is None


def test_bounds_by_function() -> None:
    def rule(name: str, tensor: Tensor, owner: nn.Module) -> float | str | None:
        if isinstance(owner, nn.Embedding):
            return 0.1
        return "because" if name == "log_std" else None

    bounds = resolve_bounds(Policy(), rule)
    assert bounds["words.weight"] == Bound(0.1, "rule")
    assert bounds["log_std"].reason == "because"
    assert bounds["head.weight"].reason == "skipped by the given function"


def test_the_first_matching_pattern_of_a_mapping_is_used() -> None:
    bounds = resolve_bounds(Policy(), {"log_std": 2.0, "head.*": 0.5, "*.bias": "fan_in"})
    assert bounds["log_std"] == Bound(2.0, "given")
    assert bounds["head.bias"] == Bound(0.5, "given")
    assert bounds["body.0.bias"] == Bound(1 / math.sqrt(8), "fan_in")
    assert "no matching pattern" in bounds["body.0.weight"].reason


def test_include_and_exclude_accept_names_and_patterns() -> None:
    bounds = resolve_bounds(Policy(), include="*.weight", exclude=["head.*"])
    assert {name for name, bound in bounds.items() if bound.s} == {"body.0.weight"}
    assert bounds["head.weight"].reason == "excluded by name"
    assert bounds["body.0.bias"].reason == "not among the included names"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rule": "fanin"}, r"bounds: got 'fanin', expected one of"),
        ({"rule": 3}, r"bounds: got 3, expected one of"),
        ({"rule": {"hed.*": 1.0}}, r"bounds: 'hed\.\*' matches no parameter; the closest are head\."),
        ({"rule": {"head.*": -1.0}}, r"head\.weight: bound by rule 'given': got -1\.0, expected a positive number"),
        ({"rule": lambda name, tensor, owner: math.inf}, r"log_std: bound by rule '<lambda>': got inf"),
        ({"exclude": "nothing"}, r"exclude: 'nothing' matches no parameter"),
        ({"include": "log_std"}, r"include: 'log_std' matches only tensors without a bound"),
        ({"include": [3]}, r"include: got 3, expected a name or a glob pattern"),
    ],
)
def test_errors_name_the_invalid_argument(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        resolve_bounds(Policy(), **arguments)


def test_a_model_must_be_a_module() -> None:
    with pytest.raises(TypeError, match=r"model: got generator, expected a torch\.nn\.Module"):
        resolve_bounds(nn.Linear(2, 2).parameters())  # type: ignore[arg-type]


def test_uninitialized_lazy_layers_raise_an_error() -> None:
    layer = nn.LazyLinear(3)
    with pytest.raises(ValueError, match="weight: lazy layer without a shape"):
        resolve_bounds(layer)
    layer(torch.zeros(1, 4))
    assert resolve_bounds(layer)["weight"].s == 0.5


def test_tied_weights_with_equal_bounds_count_as_one_tensor() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert resolve_bounds(model) == {"0.weight": Bound(0.5, "fan_in")}


class Language(nn.Module):
    """A language model whose output layer is tied to its embedding."""

    def __init__(self, hidden: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.hidden = nn.Linear(4, 4) if hidden else nn.Identity()
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.words.weight


def advice(message: str, argument: str) -> Any:
    """Return the value of `argument` suggested by an error message."""
    found = re.search(rf"{argument}=(.*?) (skips|clips)", message)
    assert found is not None
    return ast.literal_eval(found.group(1))


def test_tied_weights_with_different_bounds_raise_an_error_with_working_advice() -> None:
    model = Language(hidden=True)
    expected = r"tied weights with different bounds: words\.weight \(embedding.*head\.weight \(0.5\)"
    with pytest.raises(ValueError, match=expected) as raised:
        resolve_bounds(model)
    message = str(raised.value)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with wc.clip_weights(optimizer, model, kappa=1.0, exclude=advice(message, "exclude")) as clipper:
        assert clipper.bounds["hidden.weight"].s == 0.5
        assert clipper.bounds["words.weight"].s is None
    with wc.clip_weights(optimizer, model, kappa=1.0, bounds=advice(message, "bounds")) as clipper:
        assert clipper.bounds["hidden.weight"].s == clipper.bounds["words.weight"].s == 0.5


def test_excluding_the_tied_weights_is_not_suggested_if_nothing_else_can_be_clipped() -> None:
    model = Language(hidden=False)
    with pytest.raises(ValueError, match="tied weights with different bounds") as raised:
        resolve_bounds(model)
    assert "exclude" not in str(raised.value)
    assert resolve_bounds(model, advice(str(raised.value), "bounds"))["words.weight"].s == 0.5


class Conv1D(nn.Module):
    """Like the layer of transformers: a linear layer whose weight is (in, out)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(nx, nf)), nn.Parameter(torch.zeros(nf))


Conv1D.__module__ = "transformers.pytorch_utils"


@pytest.mark.parametrize("rule", ["fan_in", "paper"])
def test_the_fan_in_of_transformers_conv1d_is_its_first_dimension(rule: str) -> None:
    assert [bound.s for bound in resolve_bounds(Conv1D(nf=16, nx=4), rule).values()] == [0.5, 0.5]


@pytest.mark.parametrize(
    "reparametrize",
    [
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.parametrizations.orthogonal,
        nn.utils.spectral_norm,
        lambda layer: nn.utils.prune.l1_unstructured(layer, "weight", 0.5),
    ],
)
def test_reparametrized_layers_raise_an_error(reparametrize: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), reparametrize(nn.Linear(4, 4)))
    with pytest.raises(ValueError, match=r"1\..*reparametrized.*exclude='1\.\*' skips the layer"):
        resolve_bounds(model)
    assert resolve_bounds(model, exclude="1.*")["0.weight"].s == 0.5


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_the_deprecated_weight_norm_raises_an_error() -> None:
    with pytest.raises(ValueError, match="reparametrized"):
        resolve_bounds(nn.utils.weight_norm(nn.Linear(4, 4)))


def test_complex_and_integer_tensors_raise_an_error() -> None:
    with pytest.raises(ValueError, match=r"weight: got dtype torch\.complex64, expected a real"):
        resolve_bounds(nn.Linear(2, 2, dtype=torch.complex64))
    layer = nn.Linear(2, 2)
    layer.weight = nn.Parameter(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)
    with pytest.raises(ValueError, match=r"weight: got dtype torch\.int8, expected a real"):
        resolve_bounds(layer)
    assert resolve_bounds(layer, exclude="weight")["bias"].s is not None


def test_wrapper_prefixes_are_removed_from_names() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    plain = resolve_bounds(model)
    assert resolve_bounds(nn.DataParallel(model)) == plain
    assert resolve_bounds(torch.compile(model, backend="eager")) == plain
    assert resolve_bounds(nn.Sequential(torch.compile(model[0], backend="eager"), model[1])) == plain


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mu = nn.Parameter(torch.zeros(3, 25))
        self.sigma = nn.Parameter(torch.ones(3, 25))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.mu.T


class NoisyChild(Noisy):
    pass


def test_register_bound_applies_to_a_layer_and_its_subclasses() -> None:
    assert resolve_bounds(NoisyChild())["mu"].s is None
    wc.register_bound(Noisy, lambda layer, name: fan_in_bound(layer.mu) if name == "mu" else "noise")
    assert resolve_bounds(nn.Sequential(NoisyChild())) == {
        "0.mu": Bound(0.2, "fan_in"),
        "0.sigma": Bound(None, reason="noise"),
    }


@pytest.mark.parametrize(
    ("layer_type", "rule"), [(Noisy(), lambda layer, name: 1.0), (Noisy, 1.0), (int, lambda *a: 1.0)]
)
def test_register_bound_checks_its_arguments(layer_type: Any, rule: Any) -> None:
    with pytest.raises(TypeError, match="expected"):
        wc.register_bound(layer_type, rule)


def shapes(*sizes: tuple[int, ...]) -> list[Tensor]:
    return [torch.zeros(size, requires_grad=True) for size in sizes]


def test_from_shapes_a_vector_after_a_weight_is_its_bias() -> None:
    log_std, *layers = bounds_from_shapes(shapes((3,), (64, 8), (64,), (3, 64), (3,)))
    assert log_std.s is None
    assert "no weight" in log_std.reason
    assert [bound.s for bound in layers] == [1 / math.sqrt(8)] * 2 + [1 / 8] * 2


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(((8, 3, 3, 3), (8,), (8,)), id="a convolution without bias and a normalization layer"),
        pytest.param(((64, 8), (64,), (3, 64), (3,), (64,)), id="a stray vector with the size of an earlier layer"),
        pytest.param(((12, 8), (12, 3), (12,), (12,)), id="an LSTM cell"),
    ],
)
def test_from_shapes_an_ambiguous_vector_raises_an_error(sizes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match=r"its shape may be .* use weightclip\.clip_weights"):
        bounds_from_shapes(shapes(*sizes))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning")
def test_a_layer_without_inputs_is_skipped() -> None:
    bounds = resolve_bounds(nn.Linear(0, 3))
    assert [bound.s for bound in bounds.values()] == [None, None]
    assert [bound.s for bound in bounds_from_shapes(shapes((3, 0), (3,)))] == [None, None]


def test_from_shapes_a_bias_after_a_frozen_weight_is_a_bias() -> None:
    layer = nn.Linear(4, 3)
    layer.weight.requires_grad_(False)
    weight, bias = bounds_from_shapes([layer.weight, layer.bias])
    assert "frozen" in weight.reason
    assert bias.s == 0.5


def test_a_mapping_is_checked_as_a_whole() -> None:
    with pytest.raises(ValueError, match="bounds: got 'fanin', expected one of"):
        resolve_bounds(Policy(), {"*": 1.0, "head.*": "fanin"})
