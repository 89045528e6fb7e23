import re

import pytest

from weightclip.lab.experiments.warm_start.config import Config, presets, resolve


def test_missing_fields_default_to_the_paper() -> None:
    config = resolve(Config(method="sgd+wc", variant="paper"))
    assert (config.lr, config.kappa, config.decay, config.sigma) == (0.001, 10.0, None, None)
    assert (config.epochs, config.images, config.test_images) == (300, 50_000, 10_000)
    assert (config.batch_size, config.width) == (125, 64)
    assert (config.stem, config.stages, config.augment) == ("imagenet", 2, False)
    assert resolve(Config(method="sgd+wc@switch", variant="paper")).kappa == 20.0


def test_the_default_variant_has_another_scale_of_kappa() -> None:
    paper, default = (presets(variant)["grid"]["kappa"] for variant in ("paper", "default"))
    assert paper == [1.0, 2.0, 5.0, 10.0, 20.0]
    assert (min(default), max(default)) == (0.5, 3.0)
    assert resolve(Config(method="sgd+wc")).kappa in default


def test_a_scale_equals_its_explicit_settings() -> None:
    laptop = resolve(Config(method="sgd", scale="laptop"))
    same = resolve(
        Config(
            method="sgd",
            epochs=laptop.epochs,
            images=laptop.images,
            test_images=laptop.test_images,
            batch_size=laptop.batch_size,
            width=laptop.width,
            stem=laptop.stem,
            lr=laptop.lr,
        )
    )
    assert laptop.facts() == same.facts()
    assert resolve(Config(method="sgd", scale="laptop", width=8)).width == 8


def test_execution_options_are_not_part_of_the_identity() -> None:
    one, other = resolve(Config(threads=1)), resolve(Config(threads=2, device="cpu", compile=True))
    assert one.facts() == other.facts()
    assert one.facts() != resolve(Config(precision="bfloat16")).facts()


def test_a_combination_uses_the_settings_of_its_parts() -> None:
    config = resolve(Config(method="sgd+l2+wc"))
    assert (config.kappa, config.decay) == (
        resolve(Config(method="sgd+wc")).kappa,
        resolve(Config(method="sgd+l2")).decay,
    )


def test_any_pytorch_optimizer_is_available_by_name() -> None:
    def required(method: str) -> list[str]:
        return list(Config(method=method).parsed_method().settings)

    assert required("adamw+wc") == ["lr", "kappa"]
    assert required("madam") == ["lr", "kappa"]
    assert required("rmsprop+sp@switch") == ["lr", "decay", "sigma"]
    assert resolve(Config(method="rmsprop", lr=0.1, settings={"momentum": 0.9})).all_settings() == {
        "lr": 0.1,
        "momentum": 0.9,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "sdg"}, "method: got 'sdg', expected one of"),
        ({"method": "sgd+wc@swich"}, "did you mean 'wc@switch'?"),
        ({"method": "sgd+wc+wc"}, "method: got 'sgd+wc+wc', expected each regularizer once"),
        ({"method": "rmsprop"}, "lr: rmsprop has no default for this setting; specify one"),
        ({"method": "sgd", "kappa": 1.0}, "kappa: got 1.0, but sgd has no such setting; it has lr"),
        (
            {"method": "sgd+wc@switch", "stages": 1},
            "stages: got 1, but sgd+wc@switch acts when the second stage starts",
        ),
        (
            {"method": "sgd+wc+wc@switch"},
            "method: got 'sgd+wc+wc@switch', expected one part with a kappa, not wc and wc@switch",
        ),
        ({"method": "sgd+l2+sp@switch"}, "expected one part with a decay, not l2 and sp@switch"),
        ({"method": "madam+wc@switch", "lr": 0.1}, "expected one part with a kappa, not madam and wc@switch"),
        ({"method": "sgd+sp@switch", "decay": 2.0}, "decay: got 2.0, expected a number from 0 to 1"),
        ({"stages": 3}, "stages: got 3, expected 1 or 2"),
        ({"variant": "papers"}, "variant: got 'papers', expected one of"),
        ({"scale": "cluster"}, "scale: got 'cluster', expected one of"),
        ({"stem": "mnist"}, "stem: got 'mnist', expected one of"),
        ({"precision": "float16"}, "precision: got 'float16', expected one of"),
        ({"images": 3}, "images: got 3, expected a whole number of at least 4"),
        ({"batch_size": 1}, "batch_size: got 1, expected a whole number of at least 2"),
        ({"epochs": 0}, "epochs: got 0, expected a whole number of at least 1"),
        ({"lr": -1.0}, "lr: got -1.0, expected a number of at least 0"),
        ({"kappa": 0.0}, "kappa: got 0.0, expected a positive number"),
        ({"settings": {"lr": 1.0}}, "lr: got it in settings (--set), expected it as an argument (--lr)"),
        ({"seed": -1}, "seed: got -1, expected a whole number from 0"),
        ({"threads": 0}, "threads: got 0, expected a whole number of at least 1"),
    ],
)
def test_errors_are_reported(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        resolve(Config(**changes))  # type: ignore[arg-type]
