"""A sample of the campaign, without networks: launch/campaign.sh runs the whole of it."""

from __future__ import annotations

from collections.abc import Iterator

import campaign
import campaign_kills
import campaign_power
import pytest
from campaign_lab import Lab
from campaign_material import QUICK


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def power(tmp_path_factory: pytest.TempPathFactory) -> str:
    return campaign_power.library(tmp_path_factory.mktemp("power"))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, power: str) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("campaign"), power=power)
    made.reference(QUICK)
    yield made
    made.close()


def attacked(lab: Lab, kind: str, count: int) -> list[list[str]]:
    """The faults of the first attacks of a kind."""
    found = []
    for _, group, number in campaign.plan({kind: count}):
        if group not in campaign_kills.COMPUTING:
            outcome = campaign.attack(lab, 1, kind, group, number)
            assert outcome is not None
            found += outcome.faults
    return found


def test_kills_lose_nothing(lab: Lab) -> None:
    assert attacked(lab, "kills", 40) == []


def test_signals_end_in_a_sentence(lab: Lab) -> None:
    assert attacked(lab, "signals", 12) == []


def test_bad_inputs_are_refused_in_a_sentence(lab: Lab) -> None:
    assert attacked(lab, "inputs", 120) == []


def test_damage_is_noticed(lab: Lab) -> None:
    assert attacked(lab, "damaged", 45) == []


def test_full_disks_and_links_are_refused_in_a_sentence(lab: Lab) -> None:
    assert attacked(lab, "full", 22) + attacked(lab, "links", 10) == []


def test_a_loss_of_power_leaves_it_whole_or_resumable(lab: Lab, power: str) -> None:
    if not power:
        pytest.skip("there is no C compiler, which the library that drops unsynced writes needs")
    assert attacked(lab, "power", 40) == []


def test_a_campaign_continues_where_it_was_stopped(lab: Lab) -> None:
    kind, group, number = campaign.plan({"inputs": 7})[0]
    campaign.attack(lab, 2, kind, group, number)
    assert campaign.attack(lab, 2, kind, group, number) is None
    plans = [campaign.plan({"inputs": count, "kills": 100}) for count in (100, 1000)]
    assert set(plans[0]) <= set(plans[1])
    rows = list(campaign.tables(list(campaign.journal(lab.work))))
    assert any(row.startswith("| **inputs** | all | ") for row in rows)
