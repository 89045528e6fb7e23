"""Baselines for weight clipping on any optimizer: L2, L2 Init, and Shrink & Perturb.

Each is a `weightclip.Regularizer`, the base class for your own.
"""

from weightclip._lazy import lazily

__getattr__, __dir__ = lazily(__name__, {name: name for name in ("l2", "l2_init", "shrink_and_perturb")})
