"""The identity of a run: a hash of its configuration, data and rules."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

IDENTITY_VERSION = 2
"""Incremented when the same configuration gives different numbers. Records of other versions are not reused."""


def identity(experiment: str, config: Mapping[str, Any], checksum: str | None, rules: str | None = None) -> str:
    """Twelve hexadecimal digits of a hash of everything that determines a run's numbers.

    The hash depends on content, not on paths: a rules file is represented by its rules (`kernel.rules_text`). An
    experiment without data has no checksum.
    """
    facts = {
        "format": IDENTITY_VERSION,
        "experiment": experiment,
        "config": {**config, "rules": rules},
        "data": checksum,
    }
    return hashlib.sha256(to_json(facts).encode()).hexdigest()[:12]


def to_json(value: Any) -> str:
    """Canonical, strict JSON: sorted keys, and "inf" for infinity, which JSON does not have."""
    return json.dumps(_strict(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return value
