"""The kinds of examples by name: every `Kind` that a module here declares.

KINDS["passage_query"].function(record, rng, form=form, lengths=lengths)
"""

import importlib
import pkgutil

from qac_jax.data.kind import Kind


def _declared() -> dict[str, Kind]:
    modules = (
        importlib.import_module(f"{__name__}.{found.name}")
        for found in pkgutil.iter_modules(__path__)
    )
    kinds = [k for module in modules for k in vars(module).values() if isinstance(k, Kind)]
    return {kind.name: kind for kind in sorted(kinds, key=lambda kind: kind.name)}


KINDS = _declared()
