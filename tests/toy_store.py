"""A store in memory of a test: gs:// addresses that lie in a folder, without renames or appends."""

import os
from pathlib import Path
from typing import Any

import pytest
from etils.epath import backend, gpath


_CALLS = ("exists", "isdir", "listdir", "makedirs", "mkdir", "rmtree", "remove", "stat", "open")


class Store:
    """What qac_jax may use of a store, as epath's backends have it."""

    def __init__(self, root: Path):
        self.root = root
        self.written: list[str] = []
        self._below = backend.os_backend

    def _place(self, path: Any) -> str:
        return str(self.root / os.fspath(path).removeprefix("gs://"))

    def __getattr__(self, name: str) -> Any:
        if name not in _CALLS:
            raise AttributeError(f"stores do not {name}")

        def call(path: Any, *arguments: Any, **named: Any) -> Any:
            if name == "open" and "b" not in arguments[0] and "a" in arguments[0]:
                raise OSError("stores do not append")
            if name == "open" and "w" in arguments[0]:
                self.written.append(os.fspath(path))
            return getattr(self._below, name)(self._place(path), *arguments, **named)

        return call


def install(monkeypatch: pytest.MonkeyPatch, root: Path) -> Store:
    """gs:// addresses lead into the folder `root`/bucket, copies to `root`/copies."""
    store = Store(root)
    own = gpath._GPath._backend

    def of(path: Any) -> Any:
        return store if os.fspath(path).startswith("gs://") else own.fget(path)

    monkeypatch.setattr(gpath._GPath, "_backend", property(of))
    monkeypatch.setenv("QAC_STORES", str(root / "copies"))
    return store
