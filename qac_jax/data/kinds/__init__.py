"""The kinds of examples by name: every `Kind` that a module here declares.

KINDS["passage_query"].function(record, rng, form=form, lengths=lengths)
"""

from qac_jax import extras
from qac_jax.data.kind import Kind


_FOUND = [found for module in extras.modules(__name__) for found in vars(module).values()]
_DECLARED = {found.name: found for found in _FOUND if isinstance(found, Kind)}
KINDS = dict(sorted(_DECLARED.items()))
