"""Clipping ranges by layer and by unit."""

import io
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import weightclip as wc
from vectors import (
    HIDDEN_GRADIENTS,
    HIDDEN_WEIGHTS,
    OUTPUT_GRADIENTS,
    OUTPUT_WEIGHTS,
    RANGE_LR,
    RANGE_VECTORS,
    unit_range,
)
from weightclip._ranges import (
    ByLayer,
    Graded,
    Units,
    by_layer,
    needs_outputs,
    parse_kappa,
    range_of,
    read_kappa,
    rule_from_state,
    unit_kappa,
)
from weightclip.clipping import Clipper
from weightclip.lab.compiled import load_kernel
from weightclip.lab.data.mnist import MNIST
from weightclip.lab.experiments.streaming.config import Config, resolve
from weightclip.lab.experiments.streaming.fused import _boxes
from weightclip.lab.experiments.streaming.kernel import kernel_source
from weightclip.lab.experiments.streaming.reference import Reference
from weightclip.lab.experiments.streaming.rules import parse_rules


def network() -> nn.Sequential:
    """The network of the reference values: 4 inputs, 3 hidden units, 1 output."""
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Linear(3, 1, bias=False)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor(HIDDEN_WEIGHTS, dtype=torch.float64))
        model[2].weight.copy_(torch.tensor(OUTPUT_WEIGHTS, dtype=torch.float64))
    return model


class TestReferenceValues:
    """All implementations reproduce the same reference values."""

    @pytest.mark.parametrize("kappa", RANGE_VECTORS)
    def test_torch(self, kappa: str) -> None:
        model, vector = network(), RANGE_VECTORS[kappa]
        optimizer = torch.optim.SGD(model.parameters(), lr=RANGE_LR)
        wc.clip_weights(optimizer, model, parse_kappa(kappa))
        for step in range(2):
            model[0].weight.grad = torch.tensor(HIDDEN_GRADIENTS[step], dtype=torch.float64)
            model[2].weight.grad = torch.tensor(OUTPUT_GRADIENTS[step], dtype=torch.float64)
            optimizer.step()
            for layer, expected in ((model[0], vector.hidden[step]), (model[2], vector.output[step])):
                torch.testing.assert_close(
                    layer.weight.detach(), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-15
                )

    @pytest.mark.parametrize("kappa", RANGE_VECTORS)
    def test_reference(self, kappa: str) -> None:
        """The reference gradients replace the gradients of the loss."""
        vector, model = RANGE_VECTORS[kappa], network()
        assert MNIST.bundled is not None
        digits = MNIST.bundled(MNIST, "train")
        config = Config("label-permuted-emnist", "sgd+wc", lr=RANGE_LR, kappa=kappa, backend="reference")
        learner = Reference(model, resolve(config).make_optimizer(model), digits, diagnostics=False)
        given: dict[str, Tensor] = {}
        model[0].weight.register_hook(lambda g: given["hidden"])
        model[2].weight.register_hook(lambda g: given["output"])
        for step in range(2):
            for name, gradients in (("hidden", HIDDEN_GRADIENTS), ("output", OUTPUT_GRADIENTS)):
                given[name] = torch.tensor(gradients[step], dtype=torch.float64)
            learner.step(torch.ones(1, 4, dtype=torch.float64), torch.tensor([0]))
            for w, expected in zip(learner.weights(), (vector.hidden[step], vector.output[step]), strict=True):
                np.testing.assert_allclose(w, expected, rtol=1e-12, atol=1e-15)

    @pytest.mark.parametrize("kappa", RANGE_VECTORS)
    def test_optax(self, kappa: str) -> None:
        """With leaf names, because the output layers of a tree are unknown."""
        jax = pytest.importorskip("jax", reason="needs jax")
        optax = pytest.importorskip("optax", reason="needs optax")
        import weightclip.optax as wco

        vector, rule = RANGE_VECTORS[kappa], parse_kappa(kappa)
        if isinstance(rule, Graded):
            rule = wc.graded(rule.low, rule.high, rule.output, output_layers="Dense_1/*")
        elif isinstance(rule, ByLayer):
            paths = {"hidden": "Dense_0/*", "output": "Dense_1/*"}
            rule = {paths[name]: number for name, number in rule.ranges}
        with jax.enable_x64(True):
            params = {"Dense_0": {"kernel": _columns(HIDDEN_WEIGHTS)}, "Dense_1": {"kernel": _columns(OUTPUT_WEIGHTS)}}
            optimizer = optax.chain(optax.sgd(RANGE_LR), wco.clip_weights(rule))
            state = optimizer.init(params)
            for step in range(2):
                gradients = {
                    "Dense_0": {"kernel": _columns(HIDDEN_GRADIENTS[step])},
                    "Dense_1": {"kernel": _columns(OUTPUT_GRADIENTS[step])},
                }
                updates, state = optimizer.update(gradients, state, params)
                params = optax.apply_updates(params, updates)
                for name, expected in (("Dense_0", vector.hidden[step]), ("Dense_1", vector.output[step])):
                    np.testing.assert_allclose(np.asarray(params[name]["kernel"]).T, expected, rtol=1e-12, atol=1e-15)

    @pytest.mark.parametrize("kappa", RANGE_VECTORS)
    def test_fused(self, kappa: str, tmp_path: Path) -> None:
        vector, model = RANGE_VECTORS[kappa], network()
        hidden, output = _boxes(model, parse_kappa(kappa))
        per_unit = hidden.per_unit or output.per_unit
        kernel = load_kernel(kernel_source(parse_rules("sgd+wc"), "relu", "float64", True, per_unit), tmp_path)
        tables = (
            (hidden, HIDDEN_WEIGHTS, HIDDEN_GRADIENTS, vector.hidden),
            (output, OUTPUT_WEIGHTS, OUTPUT_GRADIENTS, vector.output),
        )
        for box, weights, gradients, expected in tables:
            for row, theta in enumerate(np.array(weights)):
                scalars, z = np.zeros(kernel.SCALARS), np.zeros(len(theta))
                for step in range(2):
                    kernel.update_one(
                        *(theta, np.zeros((0, len(theta))), theta.copy(), scalars, np.array([RANGE_LR, 1.0])),
                        *(np.array([box.s, box.box, box.rms]), box.rows[row : row + 1], box.columns),
                        *(np.array(gradients[step][row]), z, step + 1, np.zeros((0, 0))),
                    )
                    np.testing.assert_allclose(theta, expected[step][row], rtol=1e-12, atol=1e-15)


def _columns(rows: list[list[float]]) -> np.ndarray:
    """Transpose to Flax's layout (in, out)."""
    return np.array(rows).T


def clip(model: nn.Module, kappa: object, **options: object) -> Clipper:
    """Clip weights that are all far outside their ranges."""
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(100.0)
    clipper = wc.clip_weights(torch.optim.SGD(model.parameters(), lr=0.0), model, kappa, **options)  # type: ignore[arg-type]
    clipper.clip()
    return clipper


def ranges(tensor: Tensor, s: float) -> list[float]:
    return (tensor.detach().double() / s).flatten().tolist()


GRADED = wc.graded(0.5, 8.0, output_layers="head.*")


class Headed(nn.Module):
    """A layer and a head without a forward method, so the rule names the head as the output layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(2, 2)


def test_units_are_rows_of_weights_and_entries_of_biases() -> None:
    model = Headed(nn.Linear(4, 3))
    clip(model, GRADED)
    kappas = [unit_range(i, 0.5, 8.0) for i in range(3)]
    assert ranges(model.layer.weight, 0.5) == pytest.approx([k for k in kappas for _ in range(4)], rel=1e-6)
    assert ranges(model.layer.bias, 0.5) == pytest.approx(kappas, rel=1e-6)
    assert ranges(model.head.weight, 1 / math.sqrt(2)) == pytest.approx([2.0] * 4)


@pytest.mark.parametrize(
    ("layer", "name", "unit"),
    [
        (nn.Conv2d(2, 5, 3), "weight", lambda index: index[0]),
        (nn.ConvTranspose2d(2, 5, 3), "weight", lambda index: index[1]),
        (nn.ConvTranspose1d(4, 6, 3, groups=2), "weight", lambda index: index[1]),
        (nn.ConvTranspose1d(4, 6, 3, groups=2), "bias", lambda index: index[0] % 3),
        (nn.LSTM(3, 4), "weight_ih_l0", lambda index: index[0] % 4),
        (nn.LSTM(3, 4), "bias_hh_l0", lambda index: index[0] % 4),
        (nn.LSTM(3, 4, proj_size=2), "weight_hr_l0", lambda index: index[0]),
        (nn.GRUCell(3, 4), "weight_hh", lambda index: index[0] % 4),
        (nn.Bilinear(2, 3, 4), "weight", lambda index: index[0]),
        (nn.Linear(4, 1), "weight", lambda index: index[0]),
    ],
)
def test_the_unit_dimension_of_each_layer(layer: nn.Module, name: str, unit: Callable[[tuple[int, ...]], int]) -> None:
    model = Headed(layer)
    clipper = clip(model, GRADED)
    tensor = getattr(layer, name)
    s = clipper.bounds[f"layer.{name}"].s
    assert s is not None
    for index, value in np.ndenumerate(tensor.detach().numpy()):
        assert value / s == pytest.approx(unit_range(unit(index), 0.5, 8.0), rel=1e-5)


def test_layers_with_inputs_first_have_their_units_in_the_second_dimension() -> None:
    """Like Hugging Face's Conv1D, whose weight is (in, out)."""

    class Conv1D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.zeros(4, 3)), nn.Parameter(torch.zeros(3))

    Conv1D.__module__ = "transformers.pytorch_utils"
    model = Headed(Conv1D())
    clip(model, GRADED)
    kappas = [unit_range(i, 0.5, 8.0) for i in range(3)]
    assert ranges(model.layer.weight[0], 0.5) == pytest.approx(kappas, rel=1e-6)
    assert ranges(model.layer.bias, 0.5) == pytest.approx(kappas, rel=1e-6)


def test_members_of_an_ensemble_have_the_same_ranges() -> None:
    members = [nn.Linear(4, 3) for _ in range(2)]
    params, _ = torch.func.stack_module_state(members)
    model = wc.stacked(members[0], params)
    clip(model, wc.graded(0.5, 8.0, output_layers="bias"))
    weight = params["weight"]
    assert torch.equal(weight[0], weight[1])
    assert ranges(weight[0, :, 0], 0.5) == pytest.approx([unit_range(i, 0.5, 8.0) for i in range(3)], rel=1e-6)


def test_an_offset_for_each_layer_shifts_its_units() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    clip(model, wc.graded(0.5, 8.0, layer_offset=2))
    for number, layer, s in ((0, model[0], 0.5), (1, model[2], 1 / math.sqrt(3))):
        kappas = [unit_range(i + 2 * number, 0.5, 8.0) for i in range(3)]
        assert ranges(layer.weight[:, 0], s) == pytest.approx(kappas, rel=1e-6)
        assert ranges(layer.bias, s) == pytest.approx(kappas, rel=1e-6)
    rule = wc.graded(0.5, 8.0, layer_offset=2)
    assert parse_kappa(str(rule)) == rule


def test_the_output_layer_is_found_by_tracing() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    clip(model, wc.graded(0.5, 8.0, output=1.0))
    assert ranges(model[2].weight, 1 / math.sqrt(3)) == pytest.approx([1.0] * 6)
    clip(model, {"hidden": 5.0, "output": 1.0})
    assert ranges(model[0].bias, 0.5) == pytest.approx([5.0] * 3)
    assert ranges(model[2].bias, 1 / math.sqrt(3)) == pytest.approx([1.0] * 2)


def test_an_output_layer_graded_by_its_inputs_has_the_geometric_mean_for_its_bias() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    clip(model, wc.graded(0.5, 8.0, output=(0.25, 4.0)))
    s = 1 / math.sqrt(3)
    assert ranges(model[2].weight[0], s) == pytest.approx([unit_range(j, 0.25, 4.0) for j in range(3)], rel=1e-6)
    assert torch.equal(model[2].weight[0], model[2].weight[1])
    assert ranges(model[2].bias, s) == pytest.approx([1.0, 1.0])


def test_if_the_output_layer_is_not_found_all_layers_are_graded_with_a_warning() -> None:
    model = Headed(nn.Linear(4, 3))
    with pytest.warns(UserWarning, match=r"the output layers are unknown .*; name them, .* output_layers='head\.\*'"):
        clip(model, wc.graded())
    assert ranges(model.head.bias, 1 / math.sqrt(2)) == pytest.approx([unit_range(i, 0.5, 8.0) for i in range(2)])
    with pytest.raises(ValueError, match="name layers instead of 'output' and 'hidden'"):
        clip(model, {"output": 1.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clip(model, wc.graded(output="head.*"))
    assert ranges(model.head.bias, 1 / math.sqrt(2)) == pytest.approx([2.0] * 2)


def test_a_class_without_a_model_grades_all_layers_with_a_warning() -> None:
    layer = nn.Linear(4, 3)
    with pytest.warns(UserWarning, match="shapes do not show the output layers"):
        optimizer = wc.clipped(torch.optim.SGD)(layer.parameters(), lr=0.0, kappa=wc.graded())
    with torch.no_grad():
        layer.weight.fill_(9.0)
    layer.weight.grad = torch.zeros_like(layer.weight)
    optimizer.step()
    assert ranges(layer.weight[:, 0], 0.5) == pytest.approx([unit_range(i, 0.5, 8.0) for i in range(3)], rel=1e-6)
    with pytest.raises(ValueError, match="shapes do not identify the output layers"):
        wc.clipped(torch.optim.SGD)(layer.parameters(), lr=0.0, kappa={"output": 1.0})


def test_a_mapping_skips_unnamed_tensors_and_uses_the_first_match() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    clipper = clip(model, {"0.weight": 3.0, "*.weight": 1.0})
    assert ranges(model[0].weight, 0.5) == pytest.approx([3.0] * 12)
    assert ranges(model[2].weight, 1 / math.sqrt(3)) == pytest.approx([1.0] * 6)
    assert (model[0].bias == 100).all()
    assert clipper.bounds["0.bias"].reason == "no pattern of kappa matches"


def test_kappa_in_the_groups_scales_the_rule_and_can_be_scheduled() -> None:
    model = nn.Linear(4, 3)
    clipper = clip(model, wc.graded(0.5, 8.0, output_layers="bias"))
    group = clipper.optimizer.param_groups[0]
    assert group["kappa"] == 1.0
    before = model.weight.detach().clone()
    group["kappa"] = 0.5
    clipper.optimizer.step()
    assert torch.equal(model.weight.detach(), before / 2)


def test_the_rule_is_saved_in_the_checkpoint_and_restored() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    graded = wc.clip_weights(torch.optim.SGD(model.parameters(), lr=0.1), model, wc.graded(0.3, 7.0, output=(0.1, 3.0)))
    buffer = io.BytesIO()
    torch.save(graded.optimizer.state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    assert state["param_groups"][0]["kappa"] == 1.0
    rule = {"low": 0.3, "high": 7.0, "output": [0.1, 3.0], "output_layers": [], "layer_offset": 0}
    assert state["weightclip"]["clip_weights"]["rule"] == rule
    other = wc.clip_weights(torch.optim.SGD(model.parameters(), lr=0.1), model, 2.0)
    scalar = other.optimizer.state_dict()
    with pytest.warns(UserWarning, match=r"graded\(0.3, 7, output=0.1-3\), which replaces kappa=2"):
        other.optimizer.load_state_dict(state)
    assert other.rule == wc.graded(0.3, 7.0, output=(0.1, 3.0))
    with pytest.warns(UserWarning, match=r"has kappa=2, which replaces kappa=graded\(0.3, 7, output=0.1-3\)"):
        graded.optimizer.load_state_dict(scalar)
    assert graded.rule is None
    assert graded.optimizer.param_groups[0]["kappa"] == 2.0


@pytest.mark.parametrize("size", [(3, 4), (300, 400)])  # with limits of the tensor's shape, and with broadcast ones
def test_counting_and_clipping_agree_with_the_definition(size: tuple[int, int]) -> None:
    rows, columns = size
    layer = nn.Linear(columns, rows)
    clipper = wc.clip_weights(
        torch.optim.SGD(layer.parameters(), lr=1.0),
        layer,
        wc.graded(0.5, 8.0, output_layers="bias"),
        track_clipped=True,
    )
    s = 1 / math.sqrt(columns)
    limits = torch.tensor([unit_range(i, 0.5, 8.0) * s for i in range(rows)], dtype=torch.float64)
    for p in layer.parameters():
        p.grad = torch.randn_like(p) * 3 * s
    moved = layer.weight.detach() - layer.weight.grad
    clipper.optimizer.step()
    inside = moved.double().clamp(-limits[:, None], limits[:, None])
    assert (layer.weight.detach().double().abs() <= limits[:, None]).all()  # exactly: rounded toward 0
    torch.testing.assert_close(layer.weight.detach().double(), inside, rtol=1e-6, atol=1e-9)
    cut = (moved.double().abs() > limits[:, None]).double().mean().item()
    assert clipper.clipped_fractions["weight"] == pytest.approx(cut, abs=1e-3)


def test_a_second_set_of_weights_is_clipped_to_the_same_ranges() -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.ASGD(model.parameters(), lr=10.0, t0=0)
    wc.clip_weights(optimizer, model, wc.graded(0.5, 8.0, output_layers="bias"))
    for _ in range(3):
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
    limits = torch.tensor([unit_range(i, 0.5, 8.0) * 0.5 for i in range(3)])
    assert (optimizer.state[model.weight]["ax"].abs() <= limits[:, None]).all()


def test_the_clipper_shows_the_ranges() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    shown = str(wc.clip_weights(torch.optim.SGD(model.parameters(), lr=0.1), model, wc.graded()))
    assert "kappa=graded(0.5, 8, output=2)" in shown
    (line,) = (line for line in shown.splitlines() if line.startswith("0.weight"))
    assert line.split()[3:6] == ["0.5", "0.5-2.774", "0.25-1.387"]  # ranges of its 3 units
    model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 1), nn.ReLU(), nn.Linear(1, 2))
    shown = str(wc.clip_weights(torch.optim.SGD(model.parameters(), lr=0.1), model, wc.graded()))
    columns = {line.split()[0]: line.split()[4] for line in shown.splitlines() if ".weight" in line}
    assert columns == {"0.weight": "0.5-8", "2.weight": "0.5", "4.weight": "2"}


def test_the_certificate_has_the_norms_of_the_ranges() -> None:
    layer = nn.Linear(4, 3, bias=False)
    kappas = [unit_range(i, 0.5, 8.0) for i in range(3)]
    prior = wc.lipschitz_bounds(layer, wc.graded(0.5, 8.0, output=(0.5, 8.0))).prior
    assert prior is not None  # the only layer is the output layer, whose columns are graded by its inputs
    columns = [unit_range(j, 0.5, 8.0) for j in range(4)]
    assert prior[1] == pytest.approx(0.5 * 3 * max(columns))
    assert prior[math.inf] == pytest.approx(0.5 * sum(columns))
    model = nn.Sequential(layer, nn.ReLU(), nn.Linear(3, 2, bias=False))
    rows = wc.lipschitz_bounds(model, wc.graded(0.5, 8.0, output=1.0)).layers["0"].prior
    assert rows is not None
    assert rows[1] == pytest.approx(0.5 * sum(kappas))
    assert rows[2] == pytest.approx(0.5 * math.sqrt(4 * sum(k * k for k in kappas)))
    assert rows[math.inf] == pytest.approx(0.5 * 4 * max(kappas))


def test_the_change_of_the_output_between_any_two_weights_in_the_ranges_is_bounded() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    kappa = wc.graded(0.5, 8.0, output=(0.25, 4.0))
    x = torch.randn(1, 5)
    bound = wc.output_change_bound(model, kappa, x)
    clipper = wc.clip_weights(torch.optim.SGD(model.parameters(), lr=0.1), model, kappa)
    outputs = []
    for _ in range(50):
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn_like(p).sign() * 100)
        clipper.clip()
        outputs.append(model(x).detach())
    largest = max(float((a - b).abs().sum()) for a in outputs for b in outputs)
    assert 0 < largest <= bound


@given(
    low=st.floats(1e-3, 10),
    factor=st.floats(1, 1e12),
    output=st.one_of(st.floats(1e-9, 1e9), st.tuples(st.floats(1e-9, 1), st.floats(1, 1e9))),
    names=st.lists(st.sampled_from(["head.*", "4.*", "a,b.weight", "[a,b].*", "graded_head.bias"]), unique=True),
)
def test_a_rule_is_restored_from_its_text_and_its_checkpoint(
    low: float, factor: float, output: float | tuple[float, float], names: list[str]
) -> None:
    rule = wc.graded(low, low * factor, output, output_layers=names)
    by_layer = read_kappa({"hidden": low, **dict.fromkeys(names, low * factor)})[1]
    assert isinstance(by_layer, ByLayer)
    for one in (rule, by_layer):
        assert parse_kappa(str(one)) == one
        assert rule_from_state(one.state()) == one
        assert rule_from_state(str(one)) == one  # checkpoints of version 0.1.0


def test_the_text_graded_is_distinguished_from_names_and_may_name_the_output_layers() -> None:
    assert parse_kappa("graded_head.weight=2") == ByLayer((("graded_head.weight", 2.0),))
    assert parse_kappa("graded(output=head.*)") == wc.graded(output="head.*")
    assert parse_kappa("graded(0.5, 4, output=2.*)") == wc.graded(0.5, 4.0, output="2.*")


def test_ranges_are_spaced_evenly_on_a_logarithmic_scale() -> None:
    logs = sorted(math.log(unit_kappa(i, 0.5, 8.0) / 0.5) / math.log(16) for i in range(100))
    assert max(abs(u - (i + 0.5) / 100) for i, u in enumerate(logs)) < 0.03
    assert unit_kappa(0, 3.0, 3.0) == 3.0


def test_a_weight_with_gaps_in_memory_is_clipped_in_place() -> None:
    model = nn.Sequential(nn.Linear(30, 100), nn.ReLU(), nn.Linear(100, 2))
    model[0].weight = nn.Parameter(torch.full((100, 60), 100.0)[:, :30])
    clip(model, wc.graded(0.5, 8.0)).enforce()
    limits = torch.tensor([unit_kappa(i, 0.5, 8.0) for i in range(100)]) / math.sqrt(30)
    torch.testing.assert_close(model[0].weight.detach(), limits[:, None].expand(100, 30))


def test_a_normalization_layer_does_not_count_for_the_offset() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    found = clip(model, wc.graded(layer_offset=3)).bounds
    assert [found[f"{i}.weight"].range.offset for i in (0, 2)] == [0, 3]  # type: ignore[union-attr]


def test_unknown_output_layers_are_reported_once() -> None:
    class Untraceable(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.sum() > 0 else x  # type: ignore[no-any-return]

    model = Untraceable(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="the output layers are unknown"):
        wc.clip_weights(optimizer, model, wc.graded())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.add_param_group({"params": model[1].parameters()})
        optimizer.step()


def test_a_pattern_output_can_match_a_parameter_name() -> None:
    names = ["output", "0.weight"]
    rule = by_layer({"output": 3.0})
    assert not needs_outputs(rule, names)
    assert range_of(rule, ["output"], None, Units(1.0, 1.0), None) == 3.0
    assert range_of(rule, ["0.weight"], None, Units(1.0, 1.0), None) is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: wc.graded(8.0, 0.5), "high: got 0.5, expected at least low, 8"),
        (lambda: wc.graded(0.0), "low: got 0.0, expected a positive number"),
        (lambda: wc.graded(math.nan), "low: got nan, expected a positive number"),
        (lambda: wc.graded(1.0, math.inf), "high: got inf, expected a positive number below infinity"),
        (lambda: wc.graded(output=(3.0, 1.0)), "output[1]: got 1, expected at least output[0], 3"),
        (lambda: wc.graded(output=(1.0,)), "output: got (1.0,), expected a number or (low, high)"),  # type: ignore[arg-type]
        (lambda: wc.graded(output=-1.0), "output: got -1.0, expected a positive number"),
        (lambda: clip(nn.Linear(2, 2), {"nothing.*": 1.0}), "kappa: 'nothing.*' matches no parameter"),
        (
            lambda: clip(nn.Linear(2, 2), {"outptu": 1.0}),
            "kappa: 'outptu' matches no parameter; the closest are output",
        ),
        (lambda: clip(nn.Linear(2, 2), wc.graded(output="nothing")), "output_layers: 'nothing' matches no parameter"),
        (lambda: clip(nn.Linear(2, 2), {}), "kappa: got an empty mapping"),
        (lambda: clip(nn.Linear(2, 2), {"weight": -1.0}), "kappa['weight']: got -1.0, expected a positive number"),
        (lambda: clip(nn.Linear(2, 2), "graded"), "kappa: got 'graded', expected a positive number, a mapping, or"),
        (lambda: parse_kappa("graded(1,2,3)"), "kappa: got 'graded(1,2,3)', expected a positive number, graded"),
        (lambda: parse_kappa("=1"), "kappa: got the key ''"),
        (lambda: parse_kappa("graded(0.5,8,low=1)"), "kappa: got low twice in 'graded(0.5,8,low=1)'"),
        (lambda: parse_kappa("graded(output=1,output=2)"), "kappa: got output twice"),
        (lambda: parse_kappa("hidden=5,hidden=4"), "kappa: got 'hidden' twice in 'hidden=5,hidden=4'"),
        (lambda: parse_kappa("hidden=5;output=1"), "kappa: got 'hidden=5;output=1', expected a positive number"),
        (lambda: parse_kappa("hidden=5,1"), "kappa: got 'hidden=5,1', expected a positive number"),
        (lambda: parse_kappa("hidden=5,"), "kappa: got 'hidden=5,', expected a positive number"),
        (lambda: wc.graded(layer_offset=-1), "layer_offset: got -1, expected a whole number of at least 0"),
    ],
)
def test_invalid_input_raises_one_clear_error(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        make()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_single_kappa_does_not_require_output_layers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clip(Headed(nn.Linear(4, 3)), 2.0)


class Policy(nn.Module):
    """A policy that holds its log-std itself."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.log_std = nn.Parameter(torch.zeros(1, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.actor(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kappa", [wc.graded(), {"hidden": 5.0, "output": 1.0}], ids=str)
def test_a_bare_parameter_has_neither_units_nor_a_role(kappa: object) -> None:
    """The bounds of the paper clip a policy's log-std like a weight; graded would pin it to its first unit's range."""
    clipper = clip(Policy(), kappa, bounds="paper")
    assert clipper.bounds["log_std"].reason.startswith("bare parameter")
    assert clipper.bounds["actor.2.weight"].s is not None


@pytest.mark.parametrize("kappa", [3.0, {"log_std": 3.0}, {"hidden": 5.0, "log_std": 3.0}, {"*": 3.0}], ids=str)
def test_one_kappa_and_names_clip_a_bare_parameter_with_the_bounds_of_the_paper(kappa: object) -> None:
    policy = Policy()
    clipper = clip(policy, kappa, bounds="paper")
    assert clipper.sides()[policy.log_std] == pytest.approx(3 / math.sqrt(3))


@pytest.mark.parametrize(
    ("kappa", "message"),
    [
        ({"*": 5.0, "3.*": 1.0}, "kappa: '3.*' has no effect, because earlier keys match all of its tensors"),
        ({"hidden": 5.0, "output": 1.0, "0.weight": 2.0}, "kappa: '0.weight' has no effect"),
        ({"output": 1.0, "1.*": 2.0}, "kappa: '1.*' matches only tensors without a bound (1.weight: normali"),
    ],
)
def test_a_key_without_effect_raises_an_error(kappa: object, message: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(ValueError) as error:  # noqa: PT011
        clip(model, kappa)
    assert message in str(error.value)


def test_roles_and_a_star_may_be_without_effect() -> None:
    """One mapping fits networks of any depth."""
    for kappa in ({"output": 1.0, "hidden": 5.0}, {"output": 1.0, "*": 5.0}):
        assert clip(nn.Linear(4, 2), kappa).bounds["weight"].range == 1.0


def test_a_key_for_parameters_of_another_optimizer_or_frozen_ones_is_accepted() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    kappa = {"0.*": 1.0, "2.*": 2.0}
    for layer in (model[0], model[2]):
        wc.clip_weights(torch.optim.SGD(layer.parameters(), lr=0.1), model, kappa)
    model[0].requires_grad_(False)
    assert clip(model, kappa).bounds["2.weight"].range == 2.0


def test_misspelled_names_are_answered_with_names_of_the_model() -> None:
    with pytest.raises(ValueError, match=r"'nothing\.\*' matches no parameter; the closest are .*weight"):
        clip(nn.Linear(2, 2), {"nothing.*": 1.0})
