"""The warm process of a campaign: it has imported the package, and forks a child for each run.

Imported is all that a verb imports, but what starts threads: a fork would lose them. JAX's backend
starts in the child. The child is `qac` with its arguments; an audit hook counts its file operations
below a folder, and it sends itself SIGKILL at the one that is asked for.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import resource
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import toy_kills


# These start threads when they are imported: TensorFlow does, and bm25s starts JAX's backend.
_THREADED = ("seqio", "data.tasks", ".bench", "__main__", "notebooks", "beam")
_OTHERS = """scipy.stats scipy.sparse.linalg pytrec_eval Stemmer tensorflow_datasets tensorstore
    array_record.python.array_record_module orbax.checkpoint flax.linen grain tokenizers uvicorn
    starlette.applications safetensors.numpy optax psutil encodings.cp437 tqdm.auto
    """.split()
_WAIT = 0.002


def serve() -> None:
    """Answers requests, a line of JSON each: to start a run, and to wait for its end."""
    warnings.simplefilter("ignore")
    _import_all()
    from qac_jax import cli

    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise RuntimeError(f"{threads} threads before the first fork")
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        if "wait" in ask:
            answer = _wait(ask["wait"], ask["limit"])
        elif child := os.fork():
            answer = {"pid": child}
        else:
            _child(cli.main, ask)
        print(json.dumps(answer), flush=True)


def _import_all() -> None:
    import qac_jax

    for module in pkgutil.walk_packages(qac_jax.__path__, "qac_jax."):
        if not any(part in module.name for part in _THREADED):
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)
    for name in _OTHERS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import jax

    # Each child compiles what it needs; small programs too are worth a file.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def _wait(child: int, limit: float) -> dict[str, Any]:
    began, hung = time.monotonic(), False
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > began + limit and not hung:
            hung = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)
            os.kill(child, signal.SIGKILL)
        time.sleep(_WAIT)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # what it has started and left
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    seconds = usage.ru_utime + usage.ru_stime
    return {"code": code, "peak": usage.ru_maxrss * 1024, "hung": hung, "seconds": seconds}


def _child(main: Any, ask: dict[str, Any]) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        os.environ.update(ask["environment"])
        name = ask["name"]
        for number, suffix in ((1, "out"), (2, "err")):
            file = os.open(f".{name}.{suffix}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if ask["file_limit"] >= 0:  # as a full disk, also for libraries that are not Python
            resource.setrlimit(resource.RLIMIT_FSIZE, (ask["file_limit"],) * 2)
        watch = toy_kills.watched(Path(ask["watch"]), ask["at"], ask["delay"])
        sys.argv = ["qac", *ask["arguments"]]
        code = _ended(main)
        sys.stdout.flush()
        sys.stderr.flush()
        if ask["count"]:
            Path(f".{name}.count").write_text(str(watch.seen))
    finally:
        os._exit(code or 0)


def _ended(main: Any) -> int:
    import traceback

    try:
        return main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:  # before the handlers stand; qac_jax.__main__ says a sentence
        return 130
    except BaseException:  # what Python itself would print
        traceback.print_exc()
        return 1
