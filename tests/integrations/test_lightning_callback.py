from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

lightning = pytest.importorskip("lightning")
pytestmark = [pytest.mark.host, pytest.mark.filterwarnings("ignore")]


def make_module(optimizers: int = 1) -> Any:
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Linear(16, 4), nn.LayerNorm(4), nn.Linear(4, 1))
            self.automatic_optimization = optimizers == 1

        def training_step(self, batch: Any, index: int) -> Any:
            loss = (self.layers(batch[0]) - 5).square().mean()
            if self.automatic_optimization:
                return loss
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
                optimizer.zero_grad()
            return None

        def configure_optimizers(self) -> Any:
            parts = [self.layers.parameters()] if optimizers == 1 else [layer.parameters() for layer in self.layers]
            return [torch.optim.Adam(part, lr=0.1) for part in parts]

    return Module()


def fit(
    module: Any, directory: Path, epochs: int, checkpoint: Path | None = None, kappa: Any = 1.0, **options: Any
) -> Any:
    from lightning.pytorch import Trainer

    from weightclip.integrations.lightning import ClipCallback

    data = torch.utils.data.TensorDataset(torch.randn(40, 16, generator=torch.Generator().manual_seed(0)))
    callback = ClipCallback(kappa, **options)
    trainer = Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=directory, callbacks=[callback],
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=8), ckpt_path=checkpoint)
    trainer.save_checkpoint(directory / f"{epochs}.ckpt")
    return callback


def test_the_weights_are_in_the_box(tmp_path: Path) -> None:
    module = make_module()
    fit(module, tmp_path, 2)
    assert module.layers[0].weight.abs().max() == 0.25


def test_an_optimizer_without_anything_to_clip_is_skipped(tmp_path: Path) -> None:
    module = make_module(optimizers=3)
    assert len(fit(module, tmp_path, 2).clippers) == 2
    assert module.layers[0].weight.abs().max() == 0.25


def test_a_resumed_run_has_the_weights_of_an_uninterrupted_one(tmp_path: Path) -> None:
    options = {"bounds": "init", "every": 3}
    whole, part, resumed = make_module(), make_module(), make_module()
    for directory in ("whole", "part", "resumed"):
        (tmp_path / directory).mkdir()
    fit(whole, tmp_path / "whole", 4, **options)
    fit(part, tmp_path / "part", 2, **options)
    fit(resumed, tmp_path / "resumed", 4, checkpoint=tmp_path / "part" / "2.ckpt", **options)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_fitting_twice_and_resuming_without_the_callback(tmp_path: Path) -> None:
    from lightning.pytorch import Trainer

    module = make_module()
    fit(module, tmp_path, 1)
    fit(module, tmp_path, 2)
    assert module.layers[0].weight.abs().max() == 0.25
    data = torch.utils.data.TensorDataset(torch.randn(40, 16))
    trainer = Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path,
    )  # fmt: skip
    with pytest.warns(RuntimeWarning, match="kappa"):
        trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=8), ckpt_path=tmp_path / "2.ckpt")


@pytest.mark.parametrize(("saved", "resumed"), [(1.0, {"*": 3.0}), ({"*": 3.0}, 1.0), ({"*": 3.0}, {"*": 5.0})])
def test_a_checkpoint_restores_its_kappa_and_one_warning_names_both(saved: Any, resumed: Any, tmp_path: Path) -> None:
    clipper = fit(make_module(), tmp_path, 1, kappa=saved).clippers[0]
    with pytest.warns(UserWarning, match="the checkpoint has kappa=.*, which replaces kappa=") as caught:
        loaded = fit(make_module(), tmp_path, 2, checkpoint=tmp_path / "1.ckpt", kappa=resumed).clippers[0]
    assert len([one for one in caught if "kappa" in str(one.message)]) == 1
    assert repr(loaded) == repr(clipper)
