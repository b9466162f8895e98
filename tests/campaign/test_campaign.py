"""A sample of the campaign: launch/campaign.sh runs the whole of it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import campaign_inputs
import campaign_kills
import pytest
from campaign_lab import Lab
from campaign_material import QUICK


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("campaign"))
    made.reference(QUICK)
    yield made
    made.close()


def test_kills_lose_nothing(lab: Lab) -> None:
    rng = random.Random(1)
    rows = [*campaign_kills.stages(lab, QUICK, 5, rng), campaign_kills.recipe(lab, 5, rng)]
    assert [fault for row in rows for fault in row.faults] == []
    assert sum(row.counts["kills"] for row in rows) >= 30


def test_signals_end_in_a_sentence(lab: Lab) -> None:
    rows = list(campaign_kills.signals(lab, ["passages", "contexts"], 2, random.Random(2)))
    assert [fault for row in rows for fault in row.faults] == []


def test_bad_inputs_are_refused_in_a_sentence(lab: Lab) -> None:
    assert campaign_inputs.inputs(lab, 150, random.Random(3))[1] == []


def test_damage_is_noticed(lab: Lab) -> None:
    names = [name for name in campaign_inputs.READERS if name in QUICK]
    assert campaign_inputs.damaged(lab, names, 40, random.Random(4))[1] == []
