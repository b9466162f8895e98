"""One training run of the toy objective in a process of its own, for tests that kill it.

python toy_run.py FOLDER STEPS [--devices N] [--die STEP] [--terminate STEP]
Writes the final parameters to FOLDER/result.npz.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("steps", type=int)
parser.add_argument("--devices", type=int, default=8)
parser.add_argument("--mesh", default="-1,1,1")
parser.add_argument("--die", type=int, default=-1)
parser.add_argument("--terminate", type=int, default=-1)
options = parser.parse_args()
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={options.devices}"

import jax  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
import toy  # noqa: E402

from qac_jax import processes  # noqa: E402
from qac_jax.errors import Interrupted  # noqa: E402
from qac_jax.training import mesh as meshes  # noqa: E402
from qac_jax.training.options import Monitoring  # noqa: E402
from qac_jax.training.step import Engine  # noqa: E402
from qac_jax.training.train import train  # noqa: E402


processes.run_by(sys.argv[1:])


class Loader(toy.MemoryLoader):
    """This process's rows; sends itself a signal before giving a certain batch."""

    def __init__(self, index: int, count: int):
        super().__init__(16)
        self._rows = slice(index * 16 // count, (index + 1) * 16 // count)
        self.spec = {n: ((shape[0] // count, *shape[1:]), t) for n, (shape, t) in self.spec.items()}

    def __next__(self) -> dict[str, np.ndarray]:
        if self._next == options.die:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._next == options.terminate:
            os.kill(os.getpid(), signal.SIGTERM)
            if jax.process_count() > 1:
                time.sleep(2.5)  # JAX looks for the signal once a second
        return {name: x[self._rows] for name, x in super().__next__().items()}


def main() -> int:
    meshes.join(processes.place())
    mesh = meshes.make_mesh([int(size) for size in options.mesh.split(",")])
    objective = toy.ToyMlm(toy.Net(dropout=0.2))
    engine = Engine(objective, optax.adamw(3e-3), mesh, seed=3)
    data: Any = Loader(*meshes.my_part(mesh))
    monitoring = Monitoring(log_every=1, save_every=3)
    try:
        state = train(
            engine, data, options.steps, monitoring, options.folder, identity={"model": "toy"}
        )
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        return stop.exit_code
    params = meshes.to_host(state.params)
    if meshes.is_first():
        np.savez(options.folder / "result.npz", **params)
    return 0


if __name__ == "__main__":
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    sys.exit(main())
