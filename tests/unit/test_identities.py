"""Ids in eight bytes behave as a set and as an index of the ids themselves."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from qac_jax.formats import identities
from qac_jax.formats.identities import IdIndex, IdSet, id_hashes, repeated


IDS = st.lists(st.text(max_size=3))


class _SmallSet(IdSet):
    """Merges its newest ids every few, so that tests see it happen."""

    _NEW = 3


@given(IDS, IDS)
def test_a_set_of_ids_is_a_set(first, more):
    known, wanted = _SmallSet(first), set(first)
    for name in more:
        assert known.add(name) == (name not in wanted)
        wanted.add(name)
        assert name in known and len(known) == len(wanted)
    for name in ("absent", "absent too"):
        assert (name in known) == (name in wanted)


@given(IDS)
def test_repeats_are_all_but_the_first(ids):
    again = [i for i, name in enumerate(ids) if name in ids[:i]]
    assert repeated(id_hashes(ids)).tolist() == again


@given(IDS)
def test_an_index_gives_every_place(ids):
    index = IdIndex(ids)
    for name in {*ids, "absent"}:
        assert index.candidates(name) == [i for i, other in enumerate(ids) if other == name]


def test_hashes_are_the_same_everywhere():
    """They are stored by one process and compared by another."""
    assert identities.id_hash("passage 1") == 0x3AF6747B398B4190
    assert id_hashes([]).dtype == np.uint64
