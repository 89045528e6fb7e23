"""Weight clipping for deep continual and reinforcement learning.

Examples:
    >>> import torch, weightclip as wc
    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    >>> clipper = wc.clip_weights(optimizer, model, kappa=2.0)  # the only new line
"""

from typing import TYPE_CHECKING

from weightclip._lazy import lazily
from weightclip._renamed import import_old_modules

if TYPE_CHECKING:
    from weightclip import diagnostics, lab
    from weightclip._bound_rules import Bound
    from weightclip._ensembles import stacked
    from weightclip._hooks import Regularizer
    from weightclip._optimizer_class import clipped
    from weightclip._ranges import graded
    from weightclip.bounds import register_bound, resolve_bounds
    from weightclip.certificate import LipschitzBounds, lipschitz_bounds, output_change_bound
    from weightclip.clipping import Clipper, clip_weights, find_clipper
    from weightclip.madam import Madam
    from weightclip.monitor import Monitor
    from weightclip.regularizers.l2 import l2
    from weightclip.regularizers.l2_init import l2_init
    from weightclip.regularizers.shrink_and_perturb import shrink_and_perturb

__version__ = "0.2.0"

__all__ = [
    "Bound",
    "Clipper",
    "LipschitzBounds",
    "Madam",
    "Monitor",
    "Regularizer",
    "clip_weights",
    "clipped",
    "diagnostics",
    "find_clipper",
    "graded",
    "l2",
    "l2_init",
    "lab",
    "lipschitz_bounds",
    "output_change_bound",
    "register_bound",
    "resolve_bounds",
    "shrink_and_perturb",
    "stacked",
]

# Lazy: `weightclip --help` and `import weightclip.optax` do not import PyTorch.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "Bound": "_bound_rules",
        "Clipper": "clipping",
        "LipschitzBounds": "certificate",
        "Madam": "madam",
        "Monitor": "monitor",
        "Regularizer": "_hooks",
        "clip_weights": "clipping",
        "clipped": "_optimizer_class",
        "diagnostics": "diagnostics",
        "find_clipper": "clipping",
        "graded": "_ranges",
        "l2": "regularizers.l2",
        "l2_init": "regularizers.l2_init",
        "lab": "lab",
        "lipschitz_bounds": "certificate",
        "output_change_bound": "certificate",
        "register_bound": "bounds",
        "resolve_bounds": "bounds",
        "shrink_and_perturb": "regularizers.shrink_and_perturb",
        "stacked": "_ensembles",
    },
)
import_old_modules()
