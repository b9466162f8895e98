"""The simulation of docs/scaling.md: what is certain of it."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def scaling() -> Any:
    path = Path(__file__).parents[2] / "launch" / "scaling.py"
    spec = importlib.util.spec_from_file_location("scaling", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scaling"] = module
    spec.loader.exec_module(module)
    return module


def test_without_losses_it_is_the_quotient(scaling: Any) -> None:
    calm = scaling.Cluster(hosts=4, spread=0.0, lost_every=1e9)
    assert scaling.simulate(40, 60.0, calm) == pytest.approx(600.0)
    assert scaling.simulate(41, 60.0, calm) == pytest.approx(660.0)


def test_lost_hosts_need_somebody_who_takes_over(scaling: Any) -> None:
    rough = scaling.Cluster(hosts=4, spread=0.0, lost_every=0.5, never=0.4, back=0.1)
    alone = [scaling.simulate(80, 60.0, rough, seed, takeover=False) for seed in range(5)]
    taken = [scaling.simulate(80, 60.0, rough, seed) for seed in range(5)]
    assert any(map(math.isinf, alone)) and sum(map(math.isfinite, taken)) > sum(
        map(math.isfinite, alone)
    )
    replaced = dataclasses.replace(rough, never=0.0)
    assert 1200.0 <= scaling.simulate(80, 60.0, replaced, 1) < 3600.0
