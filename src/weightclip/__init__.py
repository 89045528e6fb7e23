"""Weight clipping for deep continual and reinforcement learning.

Examples:
    >>> import torch, weightclip as wc
    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    >>> clipper = wc.clip_weights(optimizer, model, kappa=2.0)  # the only new line
"""

from weightclip import diagnostics
from weightclip.bounds import Bound, register_bound, resolve_bounds
from weightclip.certificate import Lipschitz, lipschitz, update_bound
from weightclip.clipping import Clipper, clip_weights, find_clipper
from weightclip.lazy import lazily
from weightclip.optimizer_class import clipped
from weightclip.rivals.l2 import l2
from weightclip.rivals.l2_init import l2_init
from weightclip.rivals.madam import Madam
from weightclip.rivals.shrink_and_perturb import shrink_and_perturb
from weightclip.stacked import stacked

__version__ = "0.1.0"

__all__ = [
    "Bound",
    "Clipper",
    "Lipschitz",
    "Madam",
    "clip_weights",
    "clipped",
    "diagnostics",
    "find_clipper",
    "l2",
    "l2_init",
    "lipschitz",
    "register_bound",
    "resolve_bounds",
    "shrink_and_perturb",
    "stacked",
    "update_bound",
]

# The laboratory needs more than PyTorch: it is imported when it is first asked for.
__getattr__, _ = lazily(__name__, {"lab": "lab"})
