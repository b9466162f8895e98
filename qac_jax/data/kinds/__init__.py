"""The kinds of examples: every module here declares one, as its KIND.

    KINDS["passage_query"].function(record, rng, form=form, lengths=lengths)

A module is imported when its kind is first used; the names are those of the files.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from qac_jax.data.kind import Kind


class _Kinds(Mapping[str, "Kind"]):
    """Name -> kind."""

    def __getitem__(self, name: str) -> Kind:
        if name not in self._names:
            raise KeyError(name)
        kind = importlib.import_module(f"{__name__}.{name}").KIND
        assert kind.name == name, f"the file {name}.py declares the kind {kind.name}"
        return kind

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @functools.cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


KINDS: Mapping[str, Kind] = _Kinds()
