"""`qac inspect`: an artefact → its kind, its origin, its first items. `qac doctor`: versions,
devices, whether each part works, and what extras bring.

Every check runs a small real task (builds an index, splits a sentence), because packages with
incompatible versions can import without an error (see the pins in pyproject.toml).
"""

import importlib
import itertools
import json
import os
import platform
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np

from qac_jax import artifacts, extras, progress
from qac_jax.errors import UserError, plain, short
from qac_jax.formats.records import Records
from qac_jax.hub import names
from qac_jax.text import sentences


# Characters of a value that are shown.
_LONG = 400


def inspect(path: str, items: int, verify: bool, task: str) -> int:
    """Prints the artefact's record and first items; the exit code."""
    artifact = artifacts.load(path)
    verified = "  (every byte verified)" if verify else ""
    if verify:
        artifact.verify()
    if verify and artifact.kind == "live":
        from qac_jax.live.verify import verify as verify_live

        verify_live(artifact)
        verified = "  (texts, vectors, words and metadata verified)"
    size = sum(entry["size"] for entry in artifact.files.values())
    print(f"{artifact.path}: {_short(artifact.kind)} (schema {artifact.schema})")
    print(f"  count     {artifact.count:,}")
    print(f"  identity  {_short(artifact.identity)}{verified}")
    made = _short(f"{artifact.stage}, version {artifact.record.get('code', '?')}")
    print(f"  made by   qac {made}")
    print(f"  files     {len(artifact.files)}, {progress.human(size, 'B')}")
    for name, identity in artifact.inputs.items():
        print(f"  from      {_short(f'{name}: {identity}')}")
    for name, value in artifact.info.items():
        if name != "gin":
            print(f"  {_short(name):<9} {_short(value)}")
    first: Iterable[dict[str, Any]] = ()
    if artifact.kind == "examples":
        from qac_jax.data.loader import preview

        first = preview(artifact, items, task=task)
    elif artifact.kind in ("passages", "contexts"):
        first = itertools.islice(Records(artifact), items)
    for item in first:
        for number, (name, value) in enumerate(item.items()):
            print(f"  {' ' if number else '-'} {_short(name)}: {_short(value)}")
    return 0


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return short(plain(" ".join(text.split())), _LONG)


class Check(NamedTuple):
    """One part: its check, the remedy if that fails, and whether the package needs it."""

    name: str
    probe: Callable[[], str]
    remedy: str
    needed: bool = True


def doctor() -> int:
    """Runs all checks; 1 where a needed part is broken."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    broken = []
    for check in CHECKS:  # a library that ends the process is the one after the last line
        try:
            state, message = "ok", check.probe()
        except Exception as error:  # whatever fails is reported, and the other parts are tried
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            message = f"{kind}{error}".split("\n")[0]
            state = "broken" if check.needed else "absent"
            broken += [check.name] if check.needed else []
        said = state == "ok" or check.remedy in message
        remedy = "" if said else f"\n{'':<28} -> {check.remedy}"
        print(f"{state:<7} {check.name:<20} {message}{remedy}", flush=True)
    print(f"\nextras ({extras.remedy('NAME')}):")
    for name, packages in extras.listed().items():
        state = "ok" if all(packages.values()) else "no"
        lacking = [one for one, version in packages.items() if not version]
        words = lacking or [f"{one} {version}" for one, version in packages.items()]
        print(f"{state:<7} {name:<20} {'lacks ' * bool(lacking)}{', '.join(words)}")
    print(f"\nbroken: {', '.join(broken)}" if broken else "\nall needed parts work")
    return 1 if broken else 0


def _versions(names: str) -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in names.split())


def _imported(name: str, modules: str, packages: str) -> Check:
    """A check that imports modules; it says the versions of their packages."""

    def probe() -> str:
        for module in modules.split():
            importlib.import_module(module)
        return _versions(packages)

    return Check(name, probe, f"pip install {packages}")


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


def _stemmer() -> str:
    import Stemmer

    if Stemmer.Stemmer("english").stemWord("running") != "run":
        raise RuntimeError("the stemmer does not stem")
    return _versions("PyStemmer")


CHECKS = (
    Check("python", _python, "install Python 3.11, 3.12 or 3.13"),
    Check("jax", _jax, "pip install jax (NVIDIA GPU: 'qac_jax[cuda]', TPU: 'qac_jax[tpu]')"),
    _imported("training", "flax.linen optax orbax.checkpoint", "flax optax orbax-checkpoint"),
    Check("scann", _scann, extras.remedy("papers"), needed=False),
    _imported("loader", "grain array_record.python.array_record_module", "grain array_record"),
    Check("sentence splitter", _splitter, "pip install nltk; reinstall this package"),
    Check("stemmer", _stemmer, "pip install PyStemmer"),
    _imported("bm25, trec_eval", "bm25s pytrec_eval", "bm25s pytrec_eval-terrier"),
    _imported("models", "tokenizers", "tokenizers safetensors"),
    _imported("gin", "gin", "gin-config"),
    Check("MiniLM", lambda: names.shipped_folder("minilm"), names.MINILM_REMEDY, False),
)
