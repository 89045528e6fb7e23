import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import weightclip as wc
from weightclip.bounds import named_tensors, resolve_bounds
from weightclip.certificate import LipschitzBounds, lipschitz_bounds, output_change_bound

NORMS = (1, 2, math.inf)
ROUNDING = 1 + 1e-7  # tolerance of observed slopes: the backward pass of Hardsigmoid uses 1/6 in float32 for any input
CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}

random_cases = settings(max_examples=60)

ACTIVATIONS: dict[str, tuple[Callable[[], nn.Module], float]] = {
    "identity": (nn.Identity, 1),
    "relu": (nn.ReLU, 1),
    "relu6": (nn.ReLU6, 1),
    "hardtanh": (lambda: nn.Hardtanh(-0.5, 2.0), 1),
    "tanh": (nn.Tanh, 1),
    "softsign": (nn.Softsign, 1),
    "tanhshrink": (nn.Tanhshrink, 1),
    "softshrink": (lambda: nn.Softshrink(0.3), 1),
    "log sigmoid": (nn.LogSigmoid, 1),
    "sigmoid": (nn.Sigmoid, 1 / 4),
    "hardsigmoid": (nn.Hardsigmoid, 1 / 6),
    "hardswish": (nn.Hardswish, 3 / 2),
    "leaky relu": (nn.LeakyReLU, 1),
    "steep leaky relu": (lambda: nn.LeakyReLU(-1.7), 1.7),
    "elu": (nn.ELU, 1),
    "elu, alpha 0.3": (lambda: nn.ELU(0.3), 1),
    "elu, alpha 2": (lambda: nn.ELU(2.0), 2),
    "celu": (nn.CELU, 1),
    "celu, alpha 0.1": (lambda: nn.CELU(0.1), 1),
    "celu, alpha 3": (lambda: nn.CELU(3.0), 1),
    "selu": (nn.SELU, 1.758100),
    "softplus": (nn.Softplus, 1),
    "softplus, beta 0.2": (lambda: nn.Softplus(0.2), 1),
    "softplus, beta 5": (lambda: nn.Softplus(5.0, 30.0), 1),
    "gelu": (nn.GELU, 1.128905),
    "gelu by tanh": (lambda: nn.GELU("tanh"), 1.128994),
    "silu": (nn.SiLU, 1.099840),
    "mish": (nn.Mish, 1.088499),
    "prelu": (nn.PReLU, 1),
    "steep prelu": (lambda: nn.PReLU(3, init=-2.5), 2.5),
}


def jacobian(model: nn.Module, x: Tensor) -> Tensor:
    slopes: Any = torch.autograd.functional.jacobian(lambda x: model(x[None])[0].flatten(), x, vectorize=True)
    return slopes.reshape(-1, x.numel())  # type: ignore[no-any-return]


def induced_norms(matrix: Tensor) -> dict[float, float]:
    return {p: float(torch.linalg.matrix_norm(matrix, p)) for p in NORMS}


def observed_slopes(model: nn.Module, x: Tensor) -> dict[float, float]:
    """Return the largest slopes found: the derivative at x in any direction, and short and long chords from x."""
    slopes = induced_norms(jacobian(model, x))
    with torch.no_grad():
        for size in (1e-3, 1.0, 100.0):
            step = size * torch.randn(20, *x.shape, dtype=x.dtype)
            moved = (model(x + step) - model(x[None])).flatten(1)
            for p in NORMS:
                chords = torch.linalg.vector_norm(moved, p, dim=1) / torch.linalg.vector_norm(step.flatten(1), p, dim=1)
                slopes[p] = max(slopes[p], float(chords.max()))
    return slopes


def clip(model: nn.Module, kappa: float) -> None:
    """Clip once, by a step without gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    wc.clip_weights(optimizer, model, kappa)
    optimizer.step()


def dense(layer: nn.Module, size: int, dims: int, channels: int) -> Tensor:
    """Return the matrix of a linear layer on inputs of the given size."""
    shape = (channels, *[size] * dims)
    basis = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        return (layer(basis) - layer(torch.zeros_like(basis[:1]))).flatten(1).T  # type: ignore[no-any-return]


@st.composite
def activations(draw: st.DrawFn, channels: int) -> nn.Module:
    module = ACTIVATIONS[draw(st.sampled_from(sorted(ACTIVATIONS)))][0]()
    return nn.PReLU(channels, init=-1.3) if isinstance(module, nn.PReLU) else module


@st.composite
def convolutions(draw: st.DrawFn, dims: int, channels: int, *, transposed: bool = False) -> Any:
    groups = draw(st.sampled_from([g for g in (1, 2, 3) if channels % g == 0]))
    each = st.tuples(*[st.integers(1, 3)] * dims)
    kernel, stride, dilation = draw(each), draw(each), draw(each)
    padding: Any = draw(st.one_of(each.map(lambda p: tuple(i - 1 for i in p)), st.just("valid")))
    if set(stride) == {1} and all(k % 2 for k in kernel):  # torch warns about a copy for even sizes
        padding = draw(st.sampled_from([padding, "same"]))
    if transposed and isinstance(padding, str):
        padding = 0
    out = groups * draw(st.integers(1, 3))
    kind: Any = (TRANSPOSED if transposed else CONVS)[dims]
    bias = draw(st.booleans())
    return kind(channels, out, kernel, stride, padding, dilation=dilation, groups=groups, bias=bias)


@st.composite
def pools(draw: st.DrawFn, dims: int) -> Any:
    each = st.tuples(*[st.integers(1, 3)] * dims)
    kernel, stride = draw(each), draw(st.none() | each)
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    ceil = draw(st.booleans())
    if draw(st.booleans()):
        kind: Any = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[dims - 1]
        # A dilated window may contain only padding: its maximum is then -inf, and torch's backward pass may crash.
        return kind(kernel, stride, padding, 1 if any(padding) else draw(each), ceil_mode=ceil)
    kind = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)[dims - 1]
    pool = kind(kernel, stride, padding, ceil, draw(st.booleans()))
    if dims > 1:
        pool.divisor_override = draw(st.sampled_from([None, 2, 7]))
    return pool


@st.composite
def mlps(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(draw(st.integers(0, 2**31)))
    sizes = draw(st.lists(st.integers(1, 8), min_size=2, max_size=4))
    layers: list[nn.Module] = []
    for n, m in pairwise(sizes):
        layers += [nn.Linear(n, m, bias=draw(st.booleans())), draw(activations(m))]
    model = nn.Sequential(nn.Sequential(*layers[:-1]), layers[-1]).double()
    return scaled(draw, model), 2 * torch.randn(sizes[0], dtype=torch.float64)


@st.composite
def convnets(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(draw(st.integers(0, 2**31)))
    dims = draw(st.integers(1, 2))
    channels = draw(st.integers(1, 3))
    x = torch.randn(channels, *[14 if dims == 1 else 7] * dims, dtype=torch.float64)
    model = nn.Sequential()
    for _ in range(draw(st.integers(1, 2))):
        model.append(draw(convolutions(dims, channels)))
        channels = model[-1].out_channels
        model.append(draw(activations(channels)))
        if draw(st.booleans()):
            model.append(draw(pools(dims)))
        if draw(st.booleans()):
            model.append(random_batch_norm(dims, channels))
    try:
        features = model.double().eval()(x[None]).numel()
    except RuntimeError:
        assume(False)  # a kernel larger than the remaining input
    if draw(st.booleans()):
        model += nn.Sequential(nn.Flatten(), nn.Linear(features, 3), draw(st.sampled_from([nn.Softmax(-1), nn.Tanh()])))
    return scaled(draw, model.double().eval()), x


def random_batch_norm(dims: int, channels: int) -> nn.Module:
    norm: Any = (nn.BatchNorm1d, nn.BatchNorm2d)[dims - 1](channels)
    for tensor in (norm.weight.data, norm.bias.data, norm.running_mean):
        tensor.normal_()
    norm.running_var.uniform_(0.1, 3)
    return norm.eval()  # type: ignore[no-any-return]


def scaled(draw: st.DrawFn, model: nn.Module) -> nn.Module:
    """Draw the weights at random or with one sign, for which the bounds for p = 1 and infinity are attained."""
    scale, positive = draw(st.sampled_from([0.5, 3.0])), draw(st.booleans())
    for tensor in model.parameters():
        if tensor.dim() > 1:
            tensor.data = scale * (tensor.data.abs() if positive else tensor.data)
    return model


@random_cases
@given(mlps())
def test_no_slope_of_a_fully_connected_network_exceeds_the_bound(case: tuple[nn.Module, Tensor]) -> None:
    model, x = case
    bound = lipschitz_bounds(model).now
    for p, slope in observed_slopes(model, x).items():
        assert slope <= bound[p] * ROUNDING, (p, model)


@random_cases
@given(convnets())
def test_no_slope_of_a_convolutional_network_exceeds_the_bound(case: tuple[nn.Module, Tensor]) -> None:
    model, x = case
    bound = lipschitz_bounds(model).now
    for p, slope in observed_slopes(model, x).items():
        assert slope <= bound[p] * ROUNDING, (p, model)


@random_cases
@given(st.one_of(mlps(), convnets()), st.floats(0.1, 5), st.sampled_from(["as drawn", "corner", "random corner"]))
def test_after_clipping_the_prior_bound_is_at_least_the_current_one(
    case: tuple[nn.Module, Tensor], kappa: float, where: str
) -> None:
    model, _ = case
    assume(any(bound.s is not None for bound in resolve_bounds(model).values()))
    for tensor in model.parameters():
        if where != "as drawn":
            far = torch.full_like(tensor, 1e3)
            tensor.data = far if where == "corner" else far * torch.randn_like(far).sign()
    clip(model, kappa)
    bounds = lipschitz_bounds(model, kappa)
    assert bounds.prior is not None
    for p in NORMS:
        assert bounds.now[p] <= bounds.prior[p]


@random_cases
@given(st.integers(1, 2), st.booleans(), st.data())
def test_convolutions_are_exact_for_p_1_and_infinity_and_close_for_p_2(
    dims: int, transposed: bool, data: st.DataObject
) -> None:
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    channels = data.draw(st.integers(1, 4))
    layer = data.draw(convolutions(dims, channels, transposed=transposed)).double()
    reach = tuple(d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True))
    size = 2 + max(reach) + max(layer.stride)
    layer.padding = (0,) * dims if transposed else reach  # so that some entry meets every tap of its residue class
    exact, bound = induced_norms(dense(layer, size, dims, channels)), lipschitz_bounds(layer).now
    assert bound[1] == pytest.approx(exact[1], rel=1e-9)
    assert bound[math.inf] == pytest.approx(exact[math.inf], rel=1e-9)
    assert exact[2] <= bound[2] * ROUNDING
    assert bound[2] <= math.sqrt(bound[1] * bound[math.inf]) * ROUNDING


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_without_overlapping_patches_are_exact_for_p_2(dims: int) -> None:
    torch.manual_seed(0)
    layer = CONVS[dims](4, 6, 2, stride=2, groups=2).double()
    exact = induced_norms(dense(layer, 4, dims, 4))
    assert lipschitz_bounds(layer).now == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("stride", "exact"), [(1, 1.0 + 0.1 + 0.1), (2, math.hypot(1.0 + 0.1, 0.1)), (3, 1.02**0.5)])
def test_taps_with_the_same_channel_rotation_are_exact_for_p_2(stride: int, exact: float) -> None:
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    layer = nn.Conv1d(2, 2, 3, stride, dtype=torch.float64)
    layer.weight.data = turn[:, :, None] * torch.tensor([1.0, 0.1, 0.1], dtype=torch.float64)
    assert lipschitz_bounds(layer).now[2] == pytest.approx(exact, rel=1e-9)
    assert induced_norms(dense(layer, 60, 1, 2))[2] == pytest.approx(exact, rel=1e-2)


@pytest.mark.parametrize(("stride", "overlap"), [(1, 9), (2, 4), (3, 1)])
def test_many_random_channels_are_bounded_by_their_patches_for_p_2(stride: int, overlap: int) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(8, 12, 3, stride, dtype=torch.float64)
    patches = math.sqrt(overlap) * induced_norms(layer.weight.detach().flatten(1))[2]
    assert lipschitz_bounds(layer).now[2] == pytest.approx(patches, rel=1e-9)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_of_one_sign_are_close_for_p_2(dims: int) -> None:
    """Far from the border, smooth positive inputs pass each tap equally, so the sum over taps is attained."""
    layer = CONVS[dims](1, 1, 3).double()
    nn.init.ones_(layer.weight)
    exact = induced_norms(dense(layer, {1: 60, 2: 14, 3: 7}[dims], dims, 1))[2]
    assert exact < lipschitz_bounds(layer).now[2] < exact * {1: 1.01, 2: 1.1, 3: 1.5}[dims]
    assert lipschitz_bounds(layer).now[2] == pytest.approx(3**dims, rel=1e-9)


def test_a_linear_layer_is_exact() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(30, 20)
    exact = induced_norms(layer.weight.detach().double())
    assert lipschitz_bounds(layer).now == pytest.approx(exact, rel=1e-9)
    assert all(lipschitz_bounds(layer).now[p] >= exact[p] for p in NORMS)


def test_rounding_never_makes_a_bound_smaller_than_the_exact_value() -> None:
    """Compared with rational arithmetic; the norm of a matrix u v^T is norm_2(u) norm_2(v)."""
    torch.manual_seed(0)
    for _ in range(50):
        u, v = (torch.randint(1, 1000, (n,), dtype=torch.float64) for n in (7, 11))
        layer = nn.Linear(11, 7, dtype=torch.float64)
        layer.weight.data = torch.outer(u, v)
        square = int(u.square().sum()) * int(v.square().sum())
        assert square <= Fraction(lipschitz_bounds(layer).now[2]) ** 2 <= square * (1 + Fraction(1, 10**9))
        layer.weight.data /= 3
        exact = [[Fraction(w) for w in row] for row in layer.weight.tolist()]
        bound = lipschitz_bounds(nn.Sequential(layer, nn.Linear(7, 7).double(), nn.Sigmoid())).layers["0"].now
        assert max(map(sum, exact)) <= Fraction(bound[math.inf])
        assert max(map(sum, zip(*exact, strict=True))) <= Fraction(bound[1])


def test_the_product_is_rounded_up_and_does_not_vanish() -> None:
    tiny = nn.Linear(2, 2, dtype=torch.float64)
    nn.init.constant_(tiny.weight, 1e-200)
    for bound in lipschitz_bounds(nn.Sequential(tiny, tiny)).now.values():
        assert 0 < bound < 1e-300
    assert lipschitz_bounds(tiny).now == pytest.approx(dict.fromkeys(NORMS, 2e-200), rel=1e-9)


def test_the_prior_bound_matches_the_theorem() -> None:
    model = nn.Sequential(nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2))
    prior = lipschitz_bounds(model, kappa=2).prior
    s = [1 / 4, 1 / math.sqrt(5), 1 / math.sqrt(3)]
    assert prior == pytest.approx(
        {
            1: 2**3 * math.prod(s) * 5 * 3 * 2,
            2: 2**3 * math.prod(s) * math.sqrt(16 * 5) * math.sqrt(5 * 3) * math.sqrt(3 * 2),
            math.inf: 2**3 * math.prod(s) * 16 * 5 * 3,
        }
    )


def test_the_prior_of_a_convolution_counts_kernel_positions() -> None:
    """With stride 2 and three taps an entry meets two of them; with dilation 2 in addition, all three or none."""

    def of(stride: int, dilation: int) -> dict[float, float] | None:
        return lipschitz_bounds(nn.Conv2d(4, 6, 3, stride, dilation=dilation, groups=2), kappa=3).prior

    side = 3 / math.sqrt(2 * 9)
    for (stride, dilation), taps in {(1, 1): 9, (2, 1): 4, (2, 2): 9, (3, 1): 1, (3, 2): 1}.items():
        reads, readers = 2 * 9, 3 * taps
        expected = {1: side * readers, 2: side * math.sqrt(reads * readers), math.inf: side * reads}
        assert of(stride, dilation) == pytest.approx(expected)
    transposed = lipschitz_bounds(nn.ConvTranspose1d(6, 4, 3, groups=2), kappa=1, bounds={"weight": 0.5}).prior
    assert transposed == pytest.approx({1: 0.5 * 2 * 3, 2: 0.5 * math.sqrt(6 * 9), math.inf: 0.5 * 3 * 3})


def test_the_prior_accepts_any_rule_and_is_infinite_for_tensors_that_are_not_clipped() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    assert lipschitz_bounds(model).prior is None
    assert lipschitz_bounds(model, 1, bounds={"0.*": 0.1, "2.*": 0.2}).prior == pytest.approx(
        {1: 0.3 * 0.4, 2: 0.1 * math.sqrt(12) * 0.2 * math.sqrt(6), math.inf: 0.4 * 0.6}
    )
    assert lipschitz_bounds(model, 1, bounds={"0.*": 0.1}).prior == dict.fromkeys(NORMS, math.inf)
    slopes = nn.Sequential(model, nn.PReLU())
    assert lipschitz_bounds(slopes, 1).prior == dict.fromkeys(NORMS, math.inf)
    assert lipschitz_bounds(slopes, 1, bounds={"*": 0.1}).layers["1"].prior == dict.fromkeys(NORMS, 1)
    assert lipschitz_bounds(slopes, 1, bounds={"*": 4}).layers["1"].prior == dict.fromkeys(NORMS, 4)


@pytest.mark.parametrize(
    ("kappa", "message"),
    [
        ({"*": 2.0, "0.*": 1.0}, r"kappa: '0\.\*' has no effect, because earlier keys match all of its tensors"),
        ({"*": 2.0, "3.*": 1.0}, r"kappa: '3\.\*' matches no parameter"),
        ({"1.*": 2.0, "*": 1.0}, r"kappa: '1\.\*' matches only tensors without a bound"),
    ],
)
def test_a_key_without_effect_raises_an_error(kappa: dict[str, float], message: str) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.PReLU(), nn.Linear(3, 2))
    with pytest.raises(ValueError, match=message):
        lipschitz_bounds(model, kappa)


def test_a_key_for_a_reparametrized_layer_is_accepted() -> None:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3)), nn.ReLU(), nn.Linear(3, 2))
    prior = lipschitz_bounds(model, {"0.*": 1.0, "2.*": 2.0})
    assert (prior.layers["0"].prior, prior.layers["2"].prior) == (
        dict.fromkeys(NORMS, math.inf),
        lipschitz_bounds(model[2], 2.0).prior,
    )


def test_the_prior_of_batch_norm_allows_zero_variance() -> None:
    norm = nn.BatchNorm1d(3, eps=0.01).eval()
    assert lipschitz_bounds(norm, 1).prior == dict.fromkeys(NORMS, math.inf)
    assert lipschitz_bounds(norm, 2, bounds={"weight": 0.3}).prior == pytest.approx(dict.fromkeys(NORMS, 2 * 0.3 / 0.1))
    assert lipschitz_bounds(nn.BatchNorm1d(3, eps=0.01, affine=False).eval(), 1).prior == pytest.approx(
        dict.fromkeys(NORMS, 10)
    )


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_the_constant_of_an_activation_is_its_steepest_slope(kind: str) -> None:
    make, constant = ACTIVATIONS[kind]
    module = make().double()
    channels = sum(p.numel() for p in module.parameters()) or 1
    x = torch.linspace(-40, 40, 800_001, dtype=torch.float64).repeat(channels, 1).T
    with torch.no_grad():
        steepest = float(module(x.clone()).diff(dim=0).abs().max() / (x[1, 0] - x[0, 0]))
    for bound in lipschitz_bounds(module).now.values():
        assert steepest <= bound * (1 + 1e-7)
        assert bound <= steepest * 1.01
        assert bound == pytest.approx(constant, rel=1e-6)


@pytest.mark.parametrize("module", [nn.Softmax(dim=1), nn.Softmax2d()], ids=repr)
def test_softmax_is_steepest_at_two_equal_probabilities(module: nn.Module) -> None:
    torch.manual_seed(0)
    x = torch.full((4, 1, 1), -1000.0, dtype=torch.float64)
    x[:2] = 0
    assert induced_norms(jacobian(module, x)) == pytest.approx(lipschitz_bounds(module).now)
    assert lipschitz_bounds(module).now == dict.fromkeys(NORMS, 0.5)
    for _ in range(50):
        slopes = observed_slopes(module, 3 * torch.randn(4, 1, 1, dtype=torch.float64))
        assert max(slopes.values()) <= 0.5 * ROUNDING


@random_cases
@given(st.integers(1, 3), st.data())
def test_no_slope_of_pooling_exceeds_the_bound(dims: int, data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    pool = data.draw(pools(dims))
    x = torch.randn(1, *[{1: 15, 2: 8, 3: 5}[dims]] * dims, dtype=torch.float64)
    try:
        pool(x[None])
    except RuntimeError:
        assume(False)  # a window larger than the input
    for p, slope in observed_slopes(pool, x).items():
        assert slope <= lipschitz_bounds(pool).now[p] * ROUNDING, pool


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_pooling_counts_the_windows_that_contain_an_entry(dims: int) -> None:
    maximum = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[dims - 1]
    average: Any = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)[dims - 1]
    assert lipschitz_bounds(maximum(2)).now == {1: 1, 2: 1, math.inf: 1}
    assert lipschitz_bounds(maximum(3, 2)).now == pytest.approx({1: 2**dims, 2: math.sqrt(2) ** dims, math.inf: 1})
    assert lipschitz_bounds(average(2)).now == pytest.approx({1: 0.5**dims, 2: math.sqrt(0.5) ** dims, math.inf: 1})
    spike = torch.zeros(1, *[7] * dims, dtype=torch.float64)
    spike[(0, *[2] * dims)] = 1
    attained = induced_norms(jacobian(maximum(3, 2), spike))
    assert attained[1] == pytest.approx(2**dims)
    assert attained[2] == pytest.approx(math.sqrt(2) ** dims)
    exact = induced_norms(jacobian(average(3, 1), spike))
    assert lipschitz_bounds(average(3, 1)).now[1] == pytest.approx(exact[1])
    assert lipschitz_bounds(average(3, 1)).now[math.inf] == pytest.approx(exact[math.inf])


@pytest.mark.parametrize("module", [nn.AdaptiveAvgPool1d(1), nn.AdaptiveAvgPool2d((1, None)), nn.AdaptiveMaxPool3d(1)])
def test_global_pooling(module: nn.Module) -> None:
    dims = int(type(module).__name__[-2])
    x = torch.randn(2, *[3] * dims, dtype=torch.float64)
    slopes = observed_slopes(module, x)
    assert lipschitz_bounds(module).now == {1: 1, 2: 1, math.inf: 1}
    assert max(slopes.values()) <= ROUNDING


def test_dropout_counts_its_scale_in_train_mode() -> None:
    for kind in (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d):
        module = kind(0.2)
        assert lipschitz_bounds(module).now == pytest.approx(dict.fromkeys(NORMS, 1.25))
        assert lipschitz_bounds(module.eval()).now == dict.fromkeys(NORMS, 1)
    assert lipschitz_bounds(nn.Sequential(nn.Dropout(1.0), nn.Linear(2, 2)), 1, bounds={"1.bias": 1}).prior == {
        **dict.fromkeys(NORMS, 0)
    }
    x = torch.ones(1000)
    assert nn.Dropout(0.2)(x).max() <= lipschitz_bounds(nn.Dropout(0.2)).now[1] * (1 + 1e-6)


def test_batch_norm_in_eval_mode_is_exact() -> None:
    torch.manual_seed(0)
    norm = random_batch_norm(2, 5).double()
    exact = induced_norms(jacobian(norm, torch.randn(5, 2, 2, dtype=torch.float64)))
    assert lipschitz_bounds(norm).now == pytest.approx(exact)


def test_a_module_used_twice_counts_twice() -> None:
    layer = nn.Linear(3, 3)
    nn.init.ones_(layer.weight)
    bounds = lipschitz_bounds(nn.Sequential(layer, nn.ReLU(), layer), 1)
    assert bounds.now == pytest.approx(dict.fromkeys(NORMS, 9))
    assert bounds.prior == pytest.approx(dict.fromkeys(NORMS, 3))


def test_wrappers_are_unwrapped_and_nested_names_are_dotted() -> None:
    layer = nn.Linear(3, 2)
    model = nn.Sequential(nn.Sequential(torch.compile(layer)), nn.DataParallel(nn.ReLU()))
    bounds = lipschitz_bounds(nn.DataParallel(model), 1)
    assert list(bounds.layers) == ["0.0", "1"]
    assert bounds.now == lipschitz_bounds(layer).now
    assert bounds.prior == lipschitz_bounds(layer, 1).prior


def test_half_precision_weights_and_empty_layers() -> None:
    layer = nn.Linear(300, 300).bfloat16()
    nn.init.ones_(layer.weight)
    assert lipschitz_bounds(layer).now == pytest.approx(dict.fromkeys(NORMS, 300))
    empty = nn.Linear(2, 2)
    empty.weight = nn.Parameter(torch.zeros(2, 0))
    assert lipschitz_bounds(empty).now == dict.fromkeys(NORMS, 0)
    assert lipschitz_bounds(nn.Sequential()).now == dict.fromkeys(NORMS, 1)


def test_a_reparametrized_weight_counts_with_its_value_and_is_not_clipped() -> None:
    torch.manual_seed(0)
    for reparametrize in (parametrizations.weight_norm, lambda layer: prune.l1_unstructured(layer, "weight", 0.5)):
        model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), reparametrize(nn.Linear(4, 3)))
        with torch.no_grad():
            for tensor in model[2].parameters():
                tensor *= 10
        bounds = lipschitz_bounds(model, 1)
        model(torch.zeros(1, 5))
        assert bounds.layers["2"].now == pytest.approx(induced_norms(model[2].weight.detach().double()))
        assert bounds.prior == dict.fromkeys(NORMS, math.inf)
        assert bounds.layers["0"].prior == lipschitz_bounds(model[0], 1).prior
        with pytest.raises(ValueError, match=r"2 \(\w*Linear\): its weight is not clipped"):
            output_change_bound(model, 1, 1.0)


def test_the_certificate_changes_neither_weights_nor_gradients() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model(torch.ones(1, 5)).sum().backward()
    lipschitz_bounds(model, 1)
    output_change_bound(model, 1, torch.ones(1, 5))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(tensor.requires_grad for tensor in model.parameters())


def test_the_bounds_print_as_a_table() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    nn.init.constant_(model[0].weight, 0.25)
    lines = str(lipschitz_bounds(model)).splitlines()
    assert [line.split() for line in lines] == [
        ["now,", "p=1", "now,", "p=2", "now,", "p=inf"],
        ["0", "0.75", "0.866", "1"],
        ["1", "1", "1", "1"],
        ["network", "0.75", "0.866", "1"],
    ]
    assert "prior, p=inf" in str(lipschitz_bounds(model, 1))
    assert isinstance(lipschitz_bounds(model), LipschitzBounds)


class OwnForward(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 10 * x


class Renamed(nn.Sequential):
    """A subclass of Sequential."""


class OwnConvolution(nn.Conv1d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return 10 * super()._conv_forward(input, weight, bias)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) ** 2  # type: ignore[no-any-return]


def patched() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.forward = lambda x: 10 * x  # type: ignore[method-assign]
    return layer


def broken(value: float) -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.weight.data[0, 0] = value
    return layer


def without_variance(norm: nn.BatchNorm3d) -> nn.Module:
    assert norm.running_var is not None
    norm.running_var.zero_()
    return norm.eval()


REFUSED: dict[str, Callable[[], nn.Module]] = {
    "LayerNorm": lambda: nn.LayerNorm(2),
    "GroupNorm": lambda: nn.GroupNorm(1, 2),
    "BatchNorm1d": lambda: nn.BatchNorm1d(2),
    "BatchNorm2d": lambda: nn.BatchNorm2d(2, track_running_stats=False).eval(),
    "BatchNorm3d": lambda: without_variance(nn.BatchNorm3d(2, eps=0.0)),
    "Hardshrink": nn.Hardshrink,
    "Threshold": lambda: nn.Threshold(0.0, 1.0),
    "LogSoftmax": nn.LogSoftmax,
    "GLU": nn.GLU,
    "Net": Net,
    "OwnForward": OwnForward,
    "OwnConvolution": lambda: OwnConvolution(1, 1, 1),
    "ModuleList": nn.ModuleList,
    "LSTM": lambda: nn.LSTM(2, 2),
    "Linear, patched": patched,
    "Linear, NaN": lambda: broken(math.nan),
    "Linear, infinite": lambda: broken(math.inf),
    "Linear, complex": lambda: nn.Linear(2, 2, dtype=torch.complex64),
    "Conv1d": lambda: nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular"),
    "Conv2d": lambda: nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"),
    "MaxPool1d": lambda: nn.MaxPool1d(2, return_indices=True),
    "AdaptiveAvgPool2d": lambda: nn.AdaptiveAvgPool2d((1, 2)),
    "AdaptiveMaxPool1d": lambda: nn.AdaptiveMaxPool1d(1, return_indices=True),
    "CELU": lambda: nn.CELU(-1.0),
    "Softplus": lambda: nn.Softplus(1.0, 2.0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_module_that_cannot_be_bounded_is_named(name: str) -> None:
    module = REFUSED[name]()
    kind = name.partition(",")[0]
    with pytest.raises(ValueError, match=rf"^2\.1 \({kind}\): "):
        lipschitz_bounds(nn.Sequential(nn.Identity(), nn.ReLU(), Renamed(nn.Tanh(), module)))
    with pytest.raises(ValueError, match=rf"^model \({kind}\): "):
        lipschitz_bounds(module)


def test_a_lazy_layer_is_named() -> None:
    lazy = nn.Sequential(nn.Identity(), nn.LazyLinear(3))
    with pytest.raises(ValueError, match=r"^1 \(LazyLinear\): lazy layer without a shape"):
        lipschitz_bounds(lazy)
    lazy(torch.zeros(1, 2))
    assert lipschitz_bounds(lazy).now == pytest.approx(induced_norms(lazy[1].weight.detach().double()))


@pytest.mark.parametrize("kappa", [0, -1.0, math.nan, math.inf, "2", True])
def test_kappa_is_a_positive_number(kappa: Any) -> None:
    with pytest.raises(ValueError, match=r"^kappa: got .*, expected a positive number"):
        lipschitz_bounds(nn.Linear(2, 2), kappa)
    with pytest.raises(ValueError, match=r"^kappa: got .*, expected a positive number"):
        output_change_bound(nn.Linear(2, 2), kappa, 1.0)


def test_the_model_is_a_module() -> None:
    with pytest.raises(TypeError, match=r"^model: got str, expected"):
        lipschitz_bounds("model")  # type: ignore[arg-type]


def set_in_box(model: nn.Module, kappa: float, where: str, sign: float) -> None:
    """Set the weights anywhere in the box, to a random corner, or to the corner where all signs are equal."""
    bounds = resolve_bounds(model)
    for name, tensor in named_tensors(model).items():
        side = kappa * (bounds[name].s or 0)
        noise = 2 * torch.rand_like(tensor) - 1
        tensor.data = (
            side * {"anywhere": noise, "corner": noise.sign(), "one sign": sign * torch.ones_like(noise)}[where]
        )


CONTRACTIONS: list[Callable[[], nn.Module]] = [
    nn.ReLU,
    nn.LeakyReLU,
    nn.Tanh,
    nn.ELU,
    nn.CELU,
    nn.Softsign,
    nn.Tanhshrink,
    lambda: nn.Softshrink(0.1),
    nn.Hardtanh,
    nn.ReLU6,
    nn.Identity,
    lambda: nn.LeakyReLU(-1.0),
    nn.Flatten,
    lambda: nn.Dropout(0.5).eval(),
    lambda: nn.Dropout1d(0.5).eval(),
]


@random_cases
@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=4),
    st.floats(0.1, 4),
    st.sampled_from(range(len(CONTRACTIONS))),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_no_change_of_the_output_exceeds_the_update_bound(
    sizes: list[int], kappa: float, activation: int, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential()
    for n, m in pairwise(sizes):
        model.append(nn.Linear(n, m, bias=bias)).append(CONTRACTIONS[activation]())
    model.double()
    x = torch.randn(8, sizes[0], dtype=torch.float64)
    x[::2].abs_()
    bound = output_change_bound(model, kappa, x)
    places = [
        ("anywhere", 1.0),
        ("corner", 1.0),
        ("one sign", 1.0),
        ("one sign", -1.0),
        ("anywhere", 1.0),
        ("corner", 1.0),
    ]
    outputs = []
    for where, sign in places:
        set_in_box(model, kappa, where, sign)
        outputs.append(model(x).detach())
    for one in outputs:
        for other in outputs:
            assert float((one - other).abs().sum(1).max()) <= bound * ROUNDING


@pytest.mark.parametrize("bias", [True, False])
def test_the_update_bound_of_one_layer_is_attained(bias: bool) -> None:
    layer = nn.Linear(4, 3, bias=bias, dtype=torch.float64)
    x = torch.tensor([[0.5, 0.25, 1.0, 0.25], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
    set_in_box(layer, 2.0, "one sign", 1.0)
    high = layer(x).detach()
    set_in_box(layer, 2.0, "one sign", -1.0)
    change = float((high - layer(x).detach()).abs().sum(1).max())
    assert change == 2 * 2.0 * 0.5 * 3 * (2.0 + bias)
    assert change <= output_change_bound(layer, 2.0, x) <= change * ROUNDING


def test_the_update_bound_matches_the_corrected_corollary() -> None:
    """The sum, term by term, for layers 4 -> 3 -> 2 -> 5, where the second layer has no bias."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, bias=False), nn.Tanh(), nn.Linear(2, 5))
    kappa, norm = 1.5, 2.0
    gains = [kappa * 3 / math.sqrt(4), kappa * 2 / math.sqrt(3), kappa * 5 / math.sqrt(2)]
    first = gains[0] * (norm + 1)
    second = gains[1] * first
    expected = (
        gains[2] * gains[1] * 2 * gains[0] * (norm + 1) + gains[2] * 2 * gains[1] * first + 2 * gains[2] * (second + 1)
    )
    assert output_change_bound(model, kappa, norm) == pytest.approx(expected)
    assert output_change_bound(model, kappa, torch.tensor([[0.0, 0, 0, 0], [0.5, -0.5, 0.5, -0.5]])) == pytest.approx(
        expected
    )
    assert output_change_bound(model, kappa, torch.tensor([0.5, -0.5, 0.5, -0.5])) == pytest.approx(expected)
    images = torch.full((2, 1, 2, 2), 0.5)
    assert output_change_bound(nn.Sequential(nn.Flatten(), model), kappa, images) == pytest.approx(expected)


def test_a_bias_with_a_separate_bound_counts_with_that_bound() -> None:
    layer = nn.Linear(4, 3)
    assert output_change_bound(layer, 2, 7.0, bounds={"weight": 0.1, "bias": 0.3}) == pytest.approx(
        2 * 2 * 3 * (0.1 * 7 + 0.3)
    )
    with pytest.raises(ValueError, match=r"^model \(Linear\): its bias is not clipped"):
        output_change_bound(layer, 2, 7.0, bounds={"weight": 0.1})
    with pytest.raises(ValueError, match=r"^model \(Linear\): its weight is not clipped"):
        output_change_bound(layer, 2, 7.0, bounds={"bias": 0.1})


@pytest.mark.parametrize(
    "module",
    [
        nn.Sigmoid(),
        nn.Softplus(),
        nn.LogSigmoid(),
        nn.GELU(),
        nn.SELU(),
        nn.ELU(2.0),
        nn.LeakyReLU(2.0),
        nn.Hardtanh(1.0, 2.0),
        nn.CELU(-1.0),
        nn.PReLU(),
        nn.Conv1d(2, 2, 1),
        nn.Softmax(-1),
        nn.Dropout(0.5),
        nn.BatchNorm1d(2).eval(),
        nn.AvgPool1d(2),
        nn.LayerNorm(2),
    ],
    ids=repr,
)
def test_modules_outside_the_corollary_are_named(module: nn.Module) -> None:
    with pytest.raises(ValueError, match=rf"^1 \({type(module).__name__}\): "):
        output_change_bound(nn.Sequential(nn.Linear(2, 2), module, nn.Linear(2, 2)), 1, 1.0)


def test_layers_with_incompatible_sizes_are_named() -> None:
    with pytest.raises(ValueError, match=r"^2 \(Linear\): got 3 input features, expected 6"):
        output_change_bound(nn.Sequential(nn.Linear(2, 3), nn.Flatten(), nn.Linear(6, 1)), 1, 1.0)


@pytest.mark.parametrize("x", [-1.0, math.nan, math.inf, "1", None])
def test_x_is_a_batch_or_a_norm(x: Any) -> None:
    with pytest.raises(ValueError, match=r"^x: got .*, expected a number of at least 0"):
        output_change_bound(nn.Linear(2, 2), 1, x)


def test_x_must_fit_the_network() -> None:
    for x in (torch.zeros(3), torch.zeros(0, 2), torch.zeros(3, 4), torch.tensor(1.0)):
        with pytest.raises(ValueError, match=r"^x: got shape .*, expected a batch of inputs with 2 features"):
            output_change_bound(nn.Linear(2, 2), 1, x)
    with pytest.raises(ValueError, match=r"^x: largest 1-norm: got nan, expected"):
        output_change_bound(nn.Linear(2, 2), 1, torch.tensor([0.0, math.nan]))
    assert output_change_bound(nn.Sequential(nn.ReLU()), 1, torch.ones(2)) == 0


def test_a_clipper_provides_its_bounds() -> None:
    """The certificate uses the clipper's measured bounds, the kappas of its groups, and its skipped tensors."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    groups = [{"params": model[0].parameters(), "kappa": 2.0}, {"params": model[2].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    clipper = wc.clip_weights(optimizer, model, kappa=0.5, bounds="init")
    first, second = (float(layer.weight.detach().abs().max()) for layer in (model[0], model[2]))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.01)
    allowed = lipschitz_bounds(model, clipper)
    assert allowed.prior is not None
    assert allowed.prior[1] == pytest.approx(2.0 * first * 3 * 0.5 * second * 2)
    assert output_change_bound(model, clipper, 1.0) > output_change_bound(model, 0.5, 1.0, bounds="init")
    clipper.remove()
    partial = wc.clip_weights(optimizer, model, kappa=0.5, clip_output_layers=False)
    assert lipschitz_bounds(model, partial).prior == dict.fromkeys((1, 2, math.inf), math.inf)
    with pytest.raises(ValueError, match=r"2 \(Linear\): its weight is not clipped"):
        output_change_bound(model, partial, 1.0)
