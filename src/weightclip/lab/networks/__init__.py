"""Networks of the experiments. The names that configurations accept are defined here, without importing PyTorch."""

ACTIVATIONS = {"leaky_relu": "LeakyReLU", "relu": "ReLU", "tanh": "Tanh"}
"""Name -> class in torch.nn."""

STEMS = ("imagenet", "cifar")
"""Stems of residual networks: 7x7 with stride 2 and max-pooling, or 3x3."""
