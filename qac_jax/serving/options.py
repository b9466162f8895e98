"""The flags of `qac serve`, without its imports, so that --help is fast."""

import dataclasses
import os
from pathlib import Path

from qac_jax.errors import UserError
from qac_jax.fields import Checked, option


# Where the token of writers is, if not in a file: a flag would show it to all users of a machine.
TOKEN = "QAC_SERVE_TOKEN"
LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclasses.dataclass(frozen=True)
class Traffic(Checked):
    """How requests are batched, how large and slow they may be, and how many may wait."""

    max_batch: int = option(32, "queries or texts of a forward pass", at_least=1)
    wait_ms: float = option(
        5.0, "milliseconds that a batch waits for clients that asked lately", at_least=0
    )
    queue: int = option(256, "requests that may wait; more get 503 and Retry-After", at_least=1)
    max_body: int = option(16 << 20, "bytes of a request; more gets 413", at_least=1)
    time_limit: float = option(
        30.0, "seconds of a request, adding excepted; then it gets 504", above=0
    )
    read_limit: float = option(15.0, "seconds in which a client must send its request", above=0)
    grace: float = option(30.0, "seconds that requests have to finish after SIGTERM", above=0)


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
    hosts: tuple[str, ...] = option(
        (), "names by which the server is called (default: this machine's own, or any with --host)"
    )
    warm: bool = option(True, "compile the usual shapes before the first request")

    def token(self) -> str:
        """That of writers; "" where nobody may write."""
        token = os.environ.get(TOKEN, "")
        if self.token_file:
            token = Path(self.token_file).read_text(encoding="utf-8", errors="replace")
        token = token.strip()
        if (token or self.token_file) and len(token) < 16:
            raise UserError(
                f"{self.token_file or TOKEN} holds a token of {len(token)} characters; expected 16 "
                "or more, such as those of `openssl rand -hex 32`"
            )
        return token

    def allowed_hosts(self) -> list[str]:
        """Names in the Host header: a page elsewhere cannot reach a local server by its own name
        (DNS rebinding)."""
        names = self.hosts or (LOCAL if self.host in LOCAL else ("*",))
        return [f"[{name}]" if ":" in name else name for name in names]
