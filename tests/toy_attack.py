"""Hostile exchanges with a server: python tests/toy_attack.py PORT COUNT SEED.

Prints a line of JSON for each: its kind, seconds, status (0: closed without one; -1: left open).
"""

import concurrent.futures
import contextlib
import json
import random
import socket
import sys
import time
from collections.abc import Callable


PORT, COUNT, SEED = map(int, (sys.argv[1:] + ["0", "0", "0"])[:3])
MOST = 45.0  # seconds after which a connection counts as one that hangs
_HOST = b"Host: localhost\r\n"
_ODD = ("NaN", "-Infinity", "1e999", "9" * 400, "9" * 5000, '"\\ud800"', '"\\u0000"', "null", "{")


def exchange(first: bytes, drip: bytes = b"", read: bool = True) -> int:
    """The last status after these bytes, and one drop after the other until the server closes."""
    end, got = time.monotonic() + MOST, b""
    with socket.create_connection(("127.0.0.1", PORT), timeout=MOST) as link:
        with contextlib.suppress(OSError):
            link.sendall(first)
            link.settimeout(0.2 if drip or not read else MOST)
            while time.monotonic() < end:
                with contextlib.suppress(TimeoutError):
                    if drip:
                        link.sendall(drip)
                    if not read:
                        time.sleep(0.2)
                    elif part := link.recv(1 << 20):
                        got += part
                    else:
                        break
            else:
                return -1
    statuses = [part[1:4] for part in got.split(b"HTTP/1.1")[1:]]
    return int(statuses[-1]) if statuses else 0


def post(path: str, body: str | bytes, length: int = -1, more: bytes = b"") -> bytes:
    content = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    size = (
        b"" if length == 0 else b"Content-Length: %d\r\n" % (length if length > 0 else len(content))
    )
    head = b"POST %s HTTP/1.1\r\n%sContent-Type: application/json\r\n" % (path.encode(), _HOST)
    return head + size + (more or b"Connection: close\r\n") + b"\r\n" + content


def get(path: str, host: bytes = _HOST) -> bytes:
    return b"GET %s HTTP/1.1\r\n%sConnection: close\r\n\r\n" % (path.encode(), host)


def crowd(draw: random.Random) -> int:
    """Connections that say nothing."""
    with contextlib.ExitStack() as open_ones:
        for _ in range(50):
            open_ones.enter_context(socket.create_connection(("127.0.0.1", PORT), timeout=MOST))
        time.sleep(draw.random())
    return 0


def texts(draw: random.Random, count: int, words: int) -> str:
    return json.dumps({"input": [f"{draw.random()} {'lamp ' * words}" for _ in range(count)]})


def nested(draw: random.Random) -> str:
    opening, closing = draw.choice(["[]", ('{"a":', "1}")])
    depth = draw.choice([50, 500, 900, 5_000, 100_000])
    return f'{{"query":"x","where":{opening * depth + "1" + closing * depth}}}'


_SLOW = {"Transfer-Encoding: chunked": b"1\r\na\r\n", "Content-Length: 90000": b"a"}
KINDS: dict[str, Callable[[random.Random], int]] = {
    "deep": lambda draw: exchange(post("/search", nested(draw))),
    "wide": lambda draw: exchange(post("/search", '{"query":"x","where":[' + "[]," * 80_000)),
    "wide texts": lambda draw: exchange(post("/v1/embeddings", '{"input":[' + "[]," * 300_000)),
    "names": lambda draw: exchange(
        post("/search", json.dumps({f"{n}": n for n in range(draw.randrange(20_000))}))
    ),
    "address": lambda draw: exchange(get("/search?q=x&where=" + "[" * draw.choice([300, 60_000]))),
    "values": lambda draw: exchange(
        post("/search", f'{{"query":"x","where":{{"year":{draw.choice(_ODD)}}}}}')
    ),
    "fields": lambda draw: exchange(
        post(
            "/search", f'{{"query":{draw.choice(_ODD)},"{draw.choice("kq")}":{draw.choice(_ODD)}}}'
        )
    ),
    "encode": lambda draw: exchange(post("/v1/embeddings", texts(draw, 256, 150))),
    "encode more": lambda draw: exchange(post("/v1/embeddings", texts(draw, 256, 900))),
    "long query": lambda draw: exchange(
        post("/search", json.dumps({"query": "lamp " * 1_590, "k": 1000, "facets": True}))
    ),
    "why": lambda draw: exchange(post("/explain", '{"query":"lamp","id":"p1"}')),
    "bytes": lambda draw: exchange(draw.randbytes(draw.randrange(1, 9_000))),
    "host": lambda draw: exchange(get("/search?q=x", b"Host: rebound.example\r\n")),
    "large": lambda draw: exchange(post("/add", "[", draw.choice([10**7, 10**12, 10**30]))),
    "slow head": lambda draw: exchange(b"GET /health HTTP/1.1\r\n" + _HOST, b"a"),
    "slow second": lambda draw: exchange(b"GET /health HTTP/1.1\r\n%s\r\nGE" % _HOST, b"T"),
    "slow body": lambda draw: exchange(
        post("/search", "", 0, (how := draw.choice([*_SLOW])).encode() + b"\r\n"), _SLOW[how]
    ),
    "unread after 401": lambda draw: exchange(
        post("/add", "", 10**6, b"Authorization: Bearer no\r\n"), b"a"
    ),
    "takes nothing": lambda draw: exchange(
        b"GET /search.js HTTP/1.1\r\n%s\r\n" % _HOST * 40, b"\n", read=False
    ),
    "crowd": crowd,
}


def attacked(number: int) -> dict[str, object]:
    draw = random.Random(f"{SEED} {number}")
    kind, began = [*KINDS][number % len(KINDS)], time.monotonic()
    status = KINDS[kind](draw)
    return {"kind": kind, "seconds": round(time.monotonic() - began, 2), "status": status}


if __name__ == "__main__":
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for done in pool.map(attacked, range(COUNT)):
            print(json.dumps(done), flush=True)
