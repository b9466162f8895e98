"""One training run of the toy objective on eight devices, in a process of its own or two.

python toy_run.py FOLDER STEPS [--terminate STEP]
Writes the final parameters to FOLDER/result.npz.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import toy

from qac_jax import processes
from qac_jax.errors import Interrupted
from qac_jax.training import mesh as meshes
from qac_jax.training.options import Monitoring
from qac_jax.training.step import Engine
from qac_jax.training.train import train


parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("steps", type=int)
parser.add_argument("--terminate", type=int, default=-1)
options = parser.parse_args()
processes.run_by(sys.argv[1:])


class Loader(toy.MemoryLoader):
    """This process's rows; sends itself a signal before giving a certain batch."""

    def __init__(self, index: int, count: int):
        super().__init__(16)
        self._rows = slice(index * 16 // count, (index + 1) * 16 // count)
        self.spec = {n: ((shape[0] // count, *shape[1:]), t) for n, (shape, t) in self.spec.items()}

    def __next__(self) -> dict[str, np.ndarray]:
        if self._next == options.terminate:
            os.kill(os.getpid(), signal.SIGTERM)
            if jax.process_count() > 1:
                time.sleep(2.5)  # JAX looks for the signal once a second
        return {name: x[self._rows] for name, x in super().__next__().items()}


def main() -> int:
    meshes.join(processes.place())
    mesh = meshes.make_mesh((2, 2, 2))
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
    sys.exit(main())
