"""Weight clipping in a Lightning module: attach it in `configure_optimizers`.

Lightning calls it before it resumes from a checkpoint, so clipping resumes with the checkpoint's kappa.

    python examples/lightning_module.py
"""

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import weightclip as wc


class Classifier(L.LightningModule):
    """A small network trained with clipping."""

    def __init__(self, kappa: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(self.network(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        self.clipper = wc.clip_weights(optimizer, self, kappa=self.hparams.kappa, track_clipped=True)
        return optimizer


def main(kappa: float = 2.0, epochs: int = 20) -> L.Trainer:
    """Learn random labels."""
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randn(512, 16), torch.randint(10, (512,))), batch_size=32, shuffle=True)
    model = Classifier(kappa)
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data)
    print(model.clipper)
    print(f"the last step cut {model.clipper.clipped_fraction:.1%} of the weights")
    return trainer


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
