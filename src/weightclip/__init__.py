"""Weight clipping for deep continual and reinforcement learning.

Examples:
    >>> import torch, weightclip as wc
    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    >>> clipper = wc.clip_weights(optimizer, model, kappa=2.0)  # the only new line
"""

from typing import TYPE_CHECKING

from weightclip.lazy import lazily

if TYPE_CHECKING:
    from weightclip import diagnostics, lab
    from weightclip._bound_rules import Bound
    from weightclip._ranges import graded
    from weightclip._stacked import stacked
    from weightclip.bounds import register_bound, resolve_bounds
    from weightclip.certificate import Lipschitz, lipschitz, update_bound
    from weightclip.clipping import Clipper, clip_weights, find_clipper
    from weightclip.monitor import Monitor
    from weightclip.optimizer_class import clipped
    from weightclip.rivals.l2 import l2
    from weightclip.rivals.l2_init import l2_init
    from weightclip.rivals.madam import Madam
    from weightclip.rivals.shrink_and_perturb import shrink_and_perturb

__version__ = "0.1.0"

__all__ = [
    "Bound",
    "Clipper",
    "Lipschitz",
    "Madam",
    "Monitor",
    "clip_weights",
    "clipped",
    "diagnostics",
    "find_clipper",
    "graded",
    "l2",
    "l2_init",
    "lab",
    "lipschitz",
    "register_bound",
    "resolve_bounds",
    "shrink_and_perturb",
    "stacked",
    "update_bound",
]

# Late, so that `weightclip --help` and `import weightclip.optax` do not import PyTorch.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "Bound": "_bound_rules",
        "Clipper": "clipping",
        "Lipschitz": "certificate",
        "Madam": "rivals.madam",
        "Monitor": "monitor",
        "clip_weights": "clipping",
        "clipped": "optimizer_class",
        "diagnostics": "diagnostics",
        "find_clipper": "clipping",
        "graded": "_ranges",
        "l2": "rivals.l2",
        "l2_init": "rivals.l2_init",
        "lab": "lab",
        "lipschitz": "certificate",
        "register_bound": "bounds",
        "resolve_bounds": "bounds",
        "shrink_and_perturb": "rivals.shrink_and_perturb",
        "stacked": "_stacked",
        "update_bound": "certificate",
    },
)
