"""Which tensor of a Hugging Face file is which parameter here, as tables.

A table maps a parameter's path ("layers/0/mlp/up/kernel") to a `Slot`: the tensor's name and how
it is stored there. Tables speak of layers as a loop, numbered from 0. `hub/name_maps.py` reads and
writes files by them.
"""

from __future__ import annotations

from typing import NamedTuple


class Slot(NamedTuple):
    """Where a parameter is stored: a whole tensor, or one of three equal parts of its last axis."""

    name: str
    transposed: bool = False
    part: int | None = None


Table = dict[str, Slot]


def names(table: Table) -> set[str]:
    """The tensors that a table speaks of."""
    return {slot.name for slot in table.values()}


def under(path: str, table: Table) -> Table:
    """The table of a module that is a submodule `path` of another one."""
    return {f"{path}/{inner}": slot for inner, slot in table.items()}


def dense(path: str, name: str, bias: bool = True) -> Table:
    """torch's Linear, whose weight is stored as [out, in]."""
    table = {f"{path}/kernel": Slot(f"{name}.weight", transposed=True)}
    return table | {f"{path}/bias": Slot(f"{name}.bias")} if bias else table


def norm(path: str, name: str, bias: bool = True) -> Table:
    """A LayerNorm with scale and, mostly, bias."""
    table = {f"{path}/scale": Slot(f"{name}.weight")}
    return table | {f"{path}/bias": Slot(f"{name}.bias")} if bias else table
