"""Baselines that weight clipping is compared with: L2, L2 Init, and Shrink & Perturb, on any optimizer."""

from weightclip._lazy import lazily

__getattr__, __dir__ = lazily(__name__, {name: name for name in ("l2", "l2_init", "shrink_and_perturb")})
