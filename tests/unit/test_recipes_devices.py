"""Every recipe's batches are shared by 1 to 16 devices, a dry run's question without compiling."""

from __future__ import annotations

import pytest
import toy_recipes

from qac_jax.stages.train import Train
from qac_jax.training import mesh as meshes


# BEIR's batch of 75 is filled up.
ALL_DEVICES = ("msmarco", "pair_", "augtriever", "dpr", "frontier")


@pytest.mark.parametrize("name", toy_recipes.RECIPES)
def test_batches_fit_any_number_of_devices(name: str) -> None:
    for stage in toy_recipes.stages(name).values():
        if not isinstance(stage, Train):
            continue
        schedule = stage.schedule
        batch, microbatch = schedule.batch_size, schedule.microbatch
        assert not microbatch or microbatch >= batch or batch % microbatch == 0
        for devices in (1, 2, 4, 8, 16):
            fills = stage.objective.fills
            used = meshes.shared_by(stage.devices.mesh, devices, batch, microbatch, fills)
            data, fsdp, _ = meshes.mesh_sizes(stage.devices.mesh, used)
            assert 1 <= used <= devices and (fills or batch % (data * fsdp) == 0)
            if name.startswith(ALL_DEVICES):
                assert used == devices
