"""`qac serve`: an index → an endpoint and a page, until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator
from typing import Any

from qac_jax import extras, progress
from qac_jax.errors import UserError
from qac_jax.serving.settings import Limits, Serving, Traffic


_STOPPING = (signal.SIGTERM, signal.SIGINT)


def run(settings: Serving, limits: Limits, traffic: Traffic) -> int:
    """Serves; returns the exit code."""
    if not settings.index:
        raise UserError("there is nothing to serve; give --index FOLDER")
    for module in ("starlette", "uvicorn"):
        extras.load(module, "serve", "qac serve")
    import jax
    import uvicorn

    from qac_jax.serving import app
    from qac_jax.serving.engine import Engine
    from qac_jax.training import compiled

    compiled.keep_between_runs()
    # Each shape of a query takes about a second, and there are some twenty.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    logging.basicConfig(format="serve: %(message)s")
    bound = _bound(settings)
    settings.token()  # refused before the index is loaded
    engine = Engine.load(settings)
    if settings.warm:
        progress.say("serve: compiling the shapes of queries (seconds; the first time a minute)")
    engine.compile(traffic.max_batch, now=settings.warm)
    config = uvicorn.Config(
        app.make(engine, settings, limits, traffic),
        http=_protocol(traffic.read_limit),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(1, round(traffic.read_limit)),
        timeout_graceful_shutdown=max(1, round(traffic.grace)),
        h11_max_incomplete_event_size=1 << 16,
    )
    server = _server(config)
    address, port = bound.getsockname()[:2]
    host = f"[{address}]" if ":" in address else address
    # The line that says where it is comes when it listens.
    progress.say(f"serve: {len(engine.live):,} passages at http://{host}:{port}")
    asyncio.run(server.serve(sockets=[bound]))
    progress.say("serve: stopped")
    return 0


def _server(config: Any) -> Any:
    """uvicorn's, which ends well at SIGTERM: by itself it raises the signal once more."""
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            before = {name: signal.signal(name, self.handle_exit) for name in _STOPPING}
            try:
                yield
            finally:
                for name, handler in before.items():
                    signal.signal(name, handler)

    return Server(config)


def _bound(settings: Serving) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        # asyncio sends without Nagle's delay (40 ms an answer) only where the protocol is named.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((settings.host, settings.port))
        bound.listen(512)
        return bound
    except OSError as error:
        raise UserError(
            f"{settings.host}:{settings.port} cannot be listened at ({error.strerror}); choose "
            "another --host or --port"
        ) from error


def _protocol(seconds: float) -> Any:
    """uvicorn's h11 with a limit for clients that connect and do not send a whole request."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.loop.call_later(seconds, self._close_if_silent)

        def _close_if_silent(self) -> None:
            if self.cycle is None and not self.transport.is_closing():
                self.transport.close()

    return Protocol
