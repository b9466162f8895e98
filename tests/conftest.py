"""Shared by all tests: eight virtual CPU devices, no network, equal draws."""

import os
from importlib import metadata
from typing import Any

import pytest
from hypothesis import settings


# Most of the suite's time is compiling, which gets the same program either way. For the whole
# process: what is compiled with and without is not equal to the last bit.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Before JAX starts: the device count is fixed when its backend is made.
_FLAGS = ["--xla_force_host_platform_device_count=8"]
# Later versions of XLA end at a flag that they do not know.
_OLD_XLA = metadata.version("jaxlib").startswith("0.10.")
if os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1" and _OLD_XLA:
    _FLAGS.append("--xla_cpu_use_fusion_emitters=false")  # compiles sooner
for _flag in _FLAGS:
    if _flag.partition("=")[0] not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_flag}".strip()
os.environ.setdefault("QAC_GIN_MODULES", "toy_stages")
os.environ.setdefault("QAC_FSYNC", "0")  # for speed; test_live.py sets it
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

# Property tests draw the same examples in every run, so that a failure belongs to a change.
settings.register_profile("fixed", derandomize=True)
settings.load_profile("fixed")


@pytest.fixture(scope="session", autouse=True)
def user_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is remembered between runs (hashes) stays out of the user's home.

    Only what tests compile is kept there, in a folder of its own that may be deleted at any time:
    compiling is most of the suite's time, and most programs are those of the run before. The
    processes that tests start share it."""
    import jax  # here, since the flags above come first
    from jax.experimental.compilation_cache import compilation_cache

    from qac_jax.artifacts.hashing import user_cache
    from qac_jax.hardware import machine

    folder = user_cache() / "tests" / machine("cpu")
    kept = {"compilation_cache_dir": str(folder), "persistent_cache_min_compile_time_secs": 0}
    for name, value in kept.items():
        jax.config.update(f"jax_{name}", value)
        os.environ[f"JAX_{name.upper()}"] = str(value)
    compilation_cache.reset_cache()  # JAX looks once, and a file's import may have compiled
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def qac(capsys: pytest.CaptureFixture[str]) -> Any:
    """The command line, for what it prints and refuses."""
    from toy_process import Qac  # after the flags above, too

    return Qac(capsys)
