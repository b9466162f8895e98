"""Every recipe's batches can be computed on 1 to 16 devices."""

from __future__ import annotations

import pytest
import toy_recipes

from qac_jax.stages.train import Train
from qac_jax.training import mesh as meshes


@pytest.mark.parametrize("name", toy_recipes.RECIPES)
def test_batches_fit_any_number_of_devices(name: str) -> None:
    for stage in toy_recipes.stages(name).values():
        if not isinstance(stage, Train):
            continue
        schedule = stage.schedule
        meshes.check_batch(schedule.batch_size, schedule.microbatch)
        for devices in (1, 2, 4, 8, 16):
            data, fsdp, tensor = meshes.mesh_sizes(stage.devices.mesh, devices)
            assert data * fsdp * tensor == devices
