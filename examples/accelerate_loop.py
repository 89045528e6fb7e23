"""Weight clipping with Accelerate: attach it to the optimizer, before or after `prepare`.

python examples/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import weightclip as wc


def main(kappa: float = 2.0, epochs: int = 10) -> nn.Module:
    """Learn random labels."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    data = DataLoader(TensorDataset(torch.randn(512, 16), torch.randint(10, (512,))), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    clipper = wc.clip_weights(optimizer, model, kappa)
    for _ in range(epochs):
        for inputs, labels in data:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
                optimizer.step()
                optimizer.zero_grad()
    print(clipper)
    return accelerator.unwrap_model(model)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
