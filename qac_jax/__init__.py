"""Query-as-context pre-training, PAIR and AugTriever in JAX: documents in, a retriever out."""

import importlib
from typing import TYPE_CHECKING, Any

from qac_jax import hardware


if TYPE_CHECKING:
    from qac_jax.inference.batches import Encoder, Generator, Reranker
    from qac_jax.retriever import Retriever

# Before anything of JAX starts: every module of the package comes after this line.
hardware.set_for_this_process()

__version__ = "0.1.0"
__all__ = ["Encoder", "Generator", "Reranker", "Retriever", "__version__"]


def __getattr__(name: str) -> Any:
    # Only when asked for: importing the package alone must stay quick.
    if name in __all__:
        where = "qac_jax.retriever" if name == "Retriever" else "qac_jax.inference.batches"
        return getattr(importlib.import_module(where), name)
    raise AttributeError(f"module 'qac_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__doc__"]
