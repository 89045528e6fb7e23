"""The paper's four experiments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightclip._lazy import lazily

if TYPE_CHECKING:
    from weightclip.lab.experiments import dqn, ppo, streaming, warm_start

__all__ = ["dqn", "ppo", "streaming", "warm_start"]
__getattr__, __dir__ = lazily(__name__, {name: name for name in __all__})
