"""The flags of `qac serve`, without its imports, so that --help is fast."""

import contextlib
import dataclasses
import fnmatch
import ipaddress
import os
import re
import resource
import socket
from pathlib import Path

from qac_jax.errors import UserError
from qac_jax.fields import Checked, option


# Where tokens are, if not in a file: a flag would show them to all users of a machine.
TOKEN, READ_TOKEN = "QAC_SERVE_TOKEN", "QAC_READ_TOKEN"
# Descriptors that a change may need for files.
_FILES = 16
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^][:/@?#\s]+)(:\d*)?")


@dataclasses.dataclass(frozen=True)
class Traffic(Checked):
    """How requests are batched, how large and slow they may be, and how many may wait."""

    max_batch: int = option(32, "queries or texts of a forward pass", at_least=1)
    wait_ms: float = option(
        5.0, "milliseconds that a batch waits for clients that asked lately", at_least=0
    )
    queue: int = option(256, "requests that may wait; more get 503 and Retry-After", at_least=1)
    rate: float = option(
        0.0, "requests a second of one client, for long; more get 429 (0: any number)", at_least=0
    )
    connections: int = option(
        512,
        "connections at one time; beyond them the one that is silent longest is closed",
        at_least=8,
    )
    max_body: int = option(
        16 << 20,
        "bytes of what is added; all large bodies at one time have 4 times as many",
        at_least=1,
    )
    time_limit: float = option(
        30.0, "seconds of a request, adding excepted; then it gets 504", above=0
    )
    read_limit: float = option(
        15.0, "seconds in which a client must send its request, and take its answer", above=0
    )
    grace: float = option(30.0, "seconds that requests have to finish after SIGTERM", above=0)

    def within(self) -> tuple[int, int]:
        """(connections at most, of them those beyond the limit until others are closed), by
        the descriptors that this process may have."""
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = most - len(os.listdir("/dev/fd")) - _FILES
        beyond = min(self.connections, free) // 4
        if beyond < 2:
            raise UserError(
                f"this process may open {most} files, which leaves none for clients; allow more, "
                "such as by `ulimit -n 1024`"
            )
        return min(self.connections + beyond, free), beyond


@dataclasses.dataclass(frozen=True)
class Serving(Checked):
    """The index that is served, the address, and who may use it."""

    index: str = option("", "living index (made of another one by qac index NEW --add IT)")
    encoder: str = option("", "encoder of the index, if it was moved")
    reranker: str = option("", "cross-encoder for requests with rerank")
    host: str = option("127.0.0.1", "address to listen at (0.0.0.0: all)")
    port: int = option(8080, "port (0: a free one)", at_least=0, at_most=65535)
    token_file: str = option(
        "", f"file with the token of those who may write (or the variable {TOKEN}; default: nobody)"
    )
    read_token_file: str = option(
        "", f"file with the token of those who may read (or {READ_TOKEN}; default: everybody)"
    )
    hosts: tuple[str, ...] = option(
        (), "names by which it is called, beside localhost, the machine's and addresses (*: any)"
    )
    warm: bool = option(True, "compile the usual shapes before the first request")

    def token(self) -> str:
        """That of writers; "" where nobody may write."""
        return _token(self.token_file, TOKEN)

    def read_token(self) -> str:
        """That of readers; "" where everybody may read."""
        return _token(self.read_token_file, READ_TOKEN)

    def called(self, host: str) -> bool:
        """Whether a Host header is ours: a page elsewhere cannot reach the server by a name of its
        own (DNS rebinding); an address cannot be such a name."""
        match = _HOST.fullmatch(host.lower())
        name = match[1].strip("[].") if match else ""
        with contextlib.suppress(ValueError):
            return bool(ipaddress.ip_address(name))
        names = ("localhost", socket.gethostname(), self.host, *self.hosts)
        return any(fnmatch.fnmatchcase(name, known.lower()) for known in names) and bool(name)


def _token(file: str, variable: str) -> str:
    token = os.environ.get(variable, "")
    if file:
        token = Path(file).read_text(encoding="utf-8", errors="replace")
    token = token.strip()
    if (token or file) and len(token) < 16:
        raise UserError(
            f"{file or variable} holds a token of {len(token)} characters; expected 16 or more, "
            "such as those of `openssl rand -hex 32`"
        )
    return token
