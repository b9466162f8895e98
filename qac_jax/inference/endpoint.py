"""A language model behind an address of OpenAI's protocol: vLLM, llama.cpp, Ollama, a cloud.

Each answer is written to a journal at once, so that nothing is asked twice after an interruption.
Texts go only to an address that the user named, and so does the key; redirects are not followed.
"""

import concurrent.futures
import contextlib
import dataclasses
import json
import math
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from qac_jax import fields, processes
from qac_jax.errors import UserError
from qac_jax.fields import Checked, option


PREFIX = "openai:"
# Addresses that need not be on the command line, joined by commas; the key.
ALLOW, KEY, USUAL_KEY = "QAC_OPENAI_ALLOW", "QAC_OPENAI_KEY", "OPENAI_API_KEY"

CHARACTERS = 4  # of a token, about
# As many answers of which none can be read end the work: the others would cost as much.
_TRIED = 20
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 600.0  # seconds
_BAD = (ValueError, LookupError, TypeError, AttributeError, RecursionError)

Choice = Mapping[str, Any]
Answer = tuple[Choice, list[int]]  # the first choice, and the tokens read and written
Report = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Calls(Checked):
    """How a language model at an address (openai:BASE_URL#MODEL) is called."""

    max_tokens_total: int = option(
        0, "stop before this number of tokens, read and written (0: none)", affects_result=False
    )
    concurrency: int = option(8, "calls at a time", at_least=1, at_most=100, affects_result=False)
    timeout: float = option(120.0, "seconds to wait for an answer", above=0, affects_result=False)
    retries: int = option(
        6, "attempts after HTTP 429, 5xx or a lost connection", at_least=0, affects_result=False
    )
    body: Mapping[str, Any] | None = option(
        None, "further fields of a request, such as max_tokens; None leaves one out"
    )


def is_named(text: str) -> bool:
    return text.startswith(PREFIX)


def address(text: str) -> tuple[str, str, str]:
    """URL, model and host of openai:BASE_URL#MODEL. Raises where the user did not name it, since a
    recipe of others may, and where it may hold a secret, which is not shown."""
    url, _, model = text.removeprefix(PREFIX).partition("#")
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        if parts.port != 0 and parts.scheme in ("http", "https") and parts.hostname and model:
            if "@" in parts.netloc or parts.query:
                raise UserError(
                    f"the address at {parts.hostname} holds a user or a query, which would be "
                    f"written down; leave it out, and put a key into {KEY}"
                )
            named = f"{PREFIX}{url}#" in processes.command()
            if not named and url not in os.environ.get(ALLOW, "").split(","):
                raise UserError(
                    f"{url} would get your texts, and a file or a script names it; name "
                    f"openai:URL#MODEL on the command line, or allow it by {ALLOW}={url}"
                )
            return url.rstrip("/"), model, parts.hostname
    raise UserError("a language model is openai:BASE_URL#MODEL; BASE_URL is like https://HOST/v1")


def tokens(text: str) -> int:
    return len(text) // CHARACTERS + 1


class Endpoint:
    """Asks one model, with the fields of `body` in each request; a journal lies in the folder."""

    def __init__(self, text: str, calls: Calls, folder: Any, body: Mapping[str, Any]):
        self._url, self._model, self._host = address(text)
        self._calls = calls
        self._here = self._host in ("localhost", "127.0.0.1", "::1")
        safe = self._here or self._url.startswith("https:")
        self._key = os.environ.get(KEY) or (os.environ.get(USUAL_KEY, "") if safe else "")
        if not self._key.isascii() or not self._key.isprintable():
            raise UserError(f"the key in {KEY} or {USUAL_KEY} is not a line of ASCII; set it again")
        # A placeholder such as EMPTY is a word that texts may hold.
        self._secret = self._key if len(self._key) > 15 else "\0"
        self._body = {"model": self._model, **body, **(calls.body or {})}
        self._journal = Path(folder) / "answers-0.jsonl"
        if self._journal.exists():  # its last line may have been cut short
            os.truncate(self._journal, self._journal.read_bytes().rfind(b"\n") + 1)
        self._known = {name: value for name, value, *_ in self._entries()}
        self._spent = sum(sum(used) for _, _, *used in self._entries())
        self._stop = threading.Event()

    def record(self) -> dict[str, Any]:
        """For an artefact: who was asked, and what it cost."""
        entries = list(self._entries())
        facts = {"answers": len(entries), "unreadable": sum(e[1] is None for e in entries)}
        used = {
            "tokens_read": sum(e[2] for e in entries),
            "tokens_written": sum(e[3] for e in entries),
        }
        return {"host": self._host, "model": self._model, **facts, **used}

    def ask(
        self, prompts: Sequence[str], read: Callable[[Choice], Any], most: int, report: Report
    ) -> list[Any]:
        """What `read` makes of the answer, of `most` tokens, to each prompt; None where it cannot.

        Equal prompts are asked once."""
        import httpx2

        usual = {"max_tokens": most, **self._body}
        usual = {name: value for name, value in usual.items() if value is not None}
        bodies = [{"messages": [{"role": "user", "content": p}], **usual} for p in prompts]
        names = [fields.digest(body) for body in bodies]
        asked = {n: b for n, b in zip(names, bodies, strict=True) if n not in self._known}
        limit = self._calls.max_tokens_total or math.inf
        flying = dict[Future[Answer], tuple[str, int]]()  # -> name, tokens that it may need

        def keep() -> None:
            """Writes down what is answered, once one is."""
            for future in concurrent.futures.wait(flying, return_when="FIRST_COMPLETED").done:
                name, _ = flying.pop(future)
                choice, used = future.result()
                self._known[name] = None
                with contextlib.suppress(*_BAD):
                    self._known[name] = read(choice)
                journal.write(json.dumps([name, self._known[name], *used]) + "\n")
                journal.flush()
                self._spent += sum(used)
                report(1, sum(used))

        with (
            open(self._journal, "a", encoding="utf-8") as journal,
            httpx2.Client(
                headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
                timeout=self._calls.timeout,
                trust_env=not self._here,  # no proxy is asked for this machine
                follow_redirects=False,
            ) as client,
            concurrent.futures.ThreadPoolExecutor(self._calls.concurrency) as pool,
        ):
            try:
                for place, (name, body) in enumerate(asked.items()):
                    need = tokens(body["messages"][0]["content"]) + body.get("max_tokens", 0)
                    while flying and (
                        len(flying) == self._calls.concurrency
                        or self._spent + sum(of for _, of in flying.values()) + need > limit
                    ):
                        keep()
                    if self._spent + need > limit:
                        raise UserError(
                            f"stopped before --max_tokens_total={limit}: {self._spent:,} tokens "
                            f"are spent, {len(self._known):,} answers kept; raise it and go on"
                        )
                    if place == _TRIED:
                        self._refuse_unreadable()
                    flying[pool.submit(self._answer, client, body)] = name, need
                while flying:
                    keep()
            except BaseException:
                self._stop.set()
                while flying:  # calls under way end, and their answers are kept
                    with contextlib.suppress(UserError):
                        keep()
                raise
        self._refuse_unreadable()
        return [self._known[name] for name in names]

    def _refuse_unreadable(self) -> None:
        if self._known and all(value is None for value in self._known.values()):
            raise UserError(
                f"no answer of {self._model} could be read; see whether it needs more room "
                "(endpoint.Calls.body = {'max_tokens': 2000} in gin), or take another model"
            )

    def _entries(self) -> Iterator[Any]:
        text = self._journal.read_text() if self._journal.exists() else ""
        return map(json.loads, text.split("\n")[:-1])

    def _answer(self, client: Any, body: Any) -> Answer:
        import httpx2

        why, last = "", self._calls.retries
        for attempt in range(last + 1):
            wait = _FIRST_WAIT * 2**attempt * random.uniform(0.5, 1.0)
            try:
                response = client.post(f"{self._url}/chat/completions", json=body)
                text = response.text.replace(self._secret, "***")
                code, why = response.status_code, f"HTTP {response.status_code}"
                if code == 200:
                    why = "no answer of a chat"
                    return _read(json.loads(text), body)
                if code not in (408, 409, 425, 429) and code < 500:
                    raise UserError(f"{self._host} refuses the request: {self._why(code, text)}")
                wait = max(wait, float(response.headers.get("retry-after", 0)))
            except httpx2.HTTPError as error:
                why = type(error).__name__
                if isinstance(error, httpx2.ConnectError) and not self._known:
                    raise UserError(f"nothing answers at {self._url}; start the server") from None
            except _BAD:
                pass  # no JSON, or a date to wait for
            if self._stop.wait(min(wait, _LONGEST_WAIT) if attempt < last else 0):
                break
        raise UserError(
            f"{self._host} did not answer in {last + 1} attempts ({why}); what is answered is "
            "kept, and the same command continues"
        )

    def _why(self, code: int, text: str) -> str:
        if code in (401, 403):  # its words may repeat parts of the key
            sent = "the key is not taken" if self._key else "a key is wanted, and none was sent"
            return f"{sent} (HTTP {code}); set {KEY}, or for https {USUAL_KEY}"
        if code < 400:
            return f"it redirects (HTTP {code}), which is not followed; give the other address"
        why = f"HTTP {code}, {' '.join(text.split())[:300]}"
        if code == 404:
            return f"{why}; check the model {self._model} and {self._url}, which may lack /v1"
        return f"{why}; endpoint.Calls.body = {{'FIELD': None}} in gin leaves a field out"


def _read(answer: Any, body: Any) -> Answer:
    choice, usage = answer["choices"][0], answer.get("usage") or {}
    # Half of a pair of surrogates cannot be written to a file.
    content = (choice["message"].get("content") or "").encode(errors="replace").decode()
    choice["message"]["content"] = content
    about = {"prompt_tokens": body["messages"][0]["content"], "completion_tokens": content}
    return choice, [max(0, int(usage.get(name, tokens(text)))) for name, text in about.items()]
