"""Baselines to weight clipping that attach to any optimizer: L2, L2 Init, Shrink & Perturb.

Each is a `weightclip.Regularizer`, the base class for your own.
"""
