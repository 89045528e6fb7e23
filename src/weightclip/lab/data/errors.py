"""What goes wrong with data."""

from __future__ import annotations


class DataError(ValueError):
    """A data set that cannot be had, or a file that is not what it should be; one line that names it."""


class Unavailable(Exception):
    """A source cannot provide the data; the next one may. The message is the reason, in a few words."""
