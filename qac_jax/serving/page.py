"""The page at /: three files of the package, without requests to anywhere else."""

from __future__ import annotations

import html
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response


ASSETS = Path(__file__).parents[1] / "assets" / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_PATHS = {"/": "search.html", "/search.css": "search.css", "/search.js": "search.js"}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)


def handlers(title: str) -> list[tuple[str, Callable[[Request], Awaitable[Response]]]]:
    """(path, what answers it) of each file."""
    return [(path, _handler(ASSETS / name, title)) for path, name in _PATHS.items()]


def _handler(file: Path, title: str) -> Callable[[Request], Awaitable[Response]]:
    content = file.read_text(encoding="utf-8").replace("{{title}}", html.escape(title))
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}

    async def answer(request: Request) -> Response:
        del request
        return Response(content, headers=headers, media_type=_TYPES[file.suffix])

    return answer
