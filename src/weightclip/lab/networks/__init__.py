"""Networks of the experiments. The names that configurations accept are here: checking them loads no PyTorch."""

ACTIVATIONS = {"leaky_relu": "LeakyReLU", "relu": "ReLU", "tanh": "Tanh"}
"""Name -> the class in torch.nn."""

STEMS = ("imagenet", "cifar")
"""Of residual networks: 7x7 with stride 2 and max-pooling, or 3x3."""
