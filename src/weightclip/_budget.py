"""The steps at which a monitor measures: every n-th, or as often as a fraction of the training time allows."""

from __future__ import annotations

LEAST_EVERY = 10
"""Default minimum number of steps between two measurements."""


class Schedule:
    """The steps of one kind of measurement: every n-th, or as often as a fraction of the training time allows.

    Each step earns a fraction of its time. A measurement is due when its expected cost has been earned, and spends its
    actual cost. So the time spent never exceeds the fraction, except by a cost that was not expected, which the next
    steps pay back. A pause in the training earns one measurement at most.

    Args:
        every: measure every n-th step; None: within the budget.
        budget: fraction of the training time.
        cost: expected seconds of the first measurement; None: as long as a step.
    """

    def __init__(self, every: int | None, budget: float, cost: float | None) -> None:
        self.every, self.budget, self.cost = every, budget, cost
        self.next = every or LEAST_EVERY
        self.earned = self.spent = 0.0
        self._time, self._steps = 0.0, 0

    def earn(self, seconds: float, steps: int) -> None:
        """Count the time of steps without a measurement."""
        self._time += seconds
        self._steps += steps
        self.earned += min(self.budget * seconds, self._expected())

    def is_due(self, step: int) -> bool:
        return step >= self.next and (self.every is not None or self.earned >= self._expected())

    def finish(self, step: int) -> None:
        """Plan the next measurement after one at `step`."""
        self.cost, self.earned, self.spent = self.spent, self.earned - self.spent, 0.0
        self.next = step + (self.every or LEAST_EVERY)

    def _expected(self) -> float:
        return self._time / max(self._steps, 1) if self.cost is None else self.cost
