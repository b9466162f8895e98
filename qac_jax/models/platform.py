"""The platform that a program is compiled for, and the memory layout of activations on a GPU."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import jax
from jax.experimental.layout import Layout, with_layout_constraint


_OTHER: contextvars.ContextVar[str] = contextvars.ContextVar("platform", default="")


def platform() -> str:
    """ "cpu", "gpu" or "tpu": that of this process, or the one of `made_for`."""
    return _OTHER.get() or jax.default_backend()


@contextlib.contextmanager
def made_for(name: str) -> Iterator[None]:
    """Programs traced in here are those of another platform."""
    token = _OTHER.set(name)
    try:
        yield
    finally:
        _OTHER.reset(token)


def one_device() -> bool:
    """Whether what is traced here runs on one device; without a mesh, whether there is but one."""
    mesh = jax.sharding.get_abstract_mesh()
    return jax.device_count() == 1 if mesh.empty else mesh.size == 1


def row_major(x: jax.Array) -> jax.Array:
    """On a GPU: x in memory in the order of its axes, and its gradient too.

    Left alone, XLA gives an activation the layout of what is first added to it: that of a bias or
    of position embeddings, whose missing axes become the innermost. Layers then compute on
    [features, tokens] or [length, features, texts], with transposes before attention and after.

    With several devices it does nothing: XLA gathers all parts of what is constrained so.
    """
    if platform() != "gpu" or not isinstance(x, jax.core.Tracer) or not one_device():
        return x
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))
