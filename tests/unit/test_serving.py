"""The endpoint: what it answers, in which shapes, and what it refuses; queries in few shapes."""

import asyncio
import base64
import functools
import itertools
import json
import re
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import flax.linen as nn
import httpx2
import jax
import numpy as np
import pytest
import toy_configs
import toy_live as toy
from fastapi import HTTPException

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.inference.encoder import Encoder
from qac_jax.inference.runner import Runner
from qac_jax.live.index import LiveIndex
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime
from qac_jax.serving import app
from qac_jax.serving.batching import Batcher, QueryEncoder
from qac_jax.serving.engine import Engine, facets
from qac_jax.serving.options import Serving, Traffic


JSON = {"Content-Type": "application/json"}
TOKEN = "0123456789abcdef0123456789abcdef"
WRITER = {"Authorization": f"Bearer {TOKEN}"}


def asked(
    engine: Engine,
    questions: Callable[[httpx2.AsyncClient], Awaitable[Any]],
    *,
    settings: Serving | None = None,
    traffic: Traffic | None = None,
) -> Any:
    """What a coroutine with a client returns; the application ends with it."""

    async def run() -> Any:
        made = app.make(engine, settings, traffic)
        transport = httpx2.ASGITransport(app=made, raise_app_exceptions=True)
        async with (
            made.router.lifespan_context(made),
            httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client,
        ):
            return await questions(client)

    return asyncio.run(run())


def one(engine: Engine, method: str, path: str, **request: Any) -> httpx2.Response:
    """One request and its answer."""
    given = {name: request.pop(name) for name in ("settings", "traffic") if name in request}
    return asked(engine, lambda client: client.request(method, path, **request), **given)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine(toy.live(tmp_path_factory.mktemp("serve") / "index", toy.records(60)))


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QAC_SERVE_TOKEN", TOKEN)


def search(engine: Engine, **body: Any) -> Any:
    answer = one(engine, "POST", "/search", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_search_is_that_of_the_index(engine: Engine) -> None:
    where = {"lang": "de", "year": {">=": 2004}}
    for weight in (None, 0, 0.5, 1):
        answer = search(engine, query="copper lamp", k=5, where=where, hybrid=weight)
        (hits,) = engine.live.search(["copper lamp"], 5, where=where, hybrid=weight)
        assert [hit["id"] for hit in answer["hits"]] == [hit.id for hit in hits]
        assert answer["hits"][0]["metadata"] == hits[0].metadata
        assert answer["passages"] == 60 and answer["took_ms"] > 0
    assert set(search(engine, query="copper lamp")["hits"][0]["scores"]) == {"dense", "bm25"}
    by_address = one(engine, "GET", "/search", params={"q": "copper", "k": 3, "hybrid": 1})
    assert by_address.json()["hits"] == search(engine, query="copper", k=3, hybrid=1)["hits"]


def test_pages_facets_and_marked_words(engine: Engine) -> None:
    whole = search(engine, query="copper lamps", k=20, facets=True, highlight=True)
    second = search(engine, query="copper lamps", k=10, offset=10)
    assert [h["id"] for h in whole["hits"][10:]] == [h["id"] for h in second["hits"]]
    assert sum(count for _, count in whole["facets"]["lang"]) == 60
    # Not 25 years, nor places in a document.
    assert set(whole["facets"]) == {"lang", "tags"}
    kept = [{"path": name, "doc": name, "kind": name[0]} for name in ("a1", "a2", "b1") * 2]
    crossed = [{"a": x, "b": y} for x, y in ("mn", "nm", "mm", "nn") * 2]
    assert set(facets(crossed)) == {"a", "b"}
    assert facets(kept) == {"kind": [("a", 4), ("b", 2)], "doc": [("a1", 2), ("a2", 2), ("b1", 2)]}
    pieces = whole["hits"][0]["highlights"]["snippet"]
    assert {text for text, hit in pieces if hit} <= {"copper", "lamp"}
    assert any(hit for _, hit in pieces)


def test_why_a_hit(engine: Engine) -> None:
    engine.live.add([{"_id": "why", "text": "A copper lamp shines. Bees hum. Lamps break."}])
    body = {"query": "copper lamps", "id": "why"}
    answer = one(engine, "POST", "/explain", json=body).json()
    engine.live.delete(["why"])
    assert sorted(each["word"] for each in answer["words"]) == ["copper", "lamps"]
    assert answer["bm25"] == pytest.approx(sum(w["score"] for w in answer["words"]), abs=1e-4)
    assert len(answer["sentences"]) == 3 and answer["sentences"][2]["text"] == "Bees hum."
    assert one(engine, "POST", "/explain", json=body | {"id": "no"}).status_code == 404


def test_openais_shape(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "tokens", lambda self, request: 7)
    expected = engine.live.encoder.encode(["copper"])[0]
    assert one(engine, "GET", "/v1/models").json()["data"][0]["id"] == "stub"
    body: dict[str, Any] = {"input": "copper", "model": "any", "input_type": "query"}
    answer = one(engine, "POST", "/v1/embeddings", json=body).json()
    assert answer["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    np.testing.assert_allclose(answer["data"][0]["embedding"], expected, atol=1e-6)
    body["encoding_format"] = "base64"
    packed = one(engine, "POST", "/v1/embeddings", json=body).json()["data"][0]["embedding"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(packed), "<f4"), expected)
    for wrong in ({"input": [[1, 2]]}, {"dimensions": 5}, {"input_type": "x"}):
        answer = one(engine, "POST", "/v1/embeddings", json={**body, **wrong})
        assert answer.status_code == 422 and answer.json()["error"]["message"]


def test_writing_needs_a_token(tmp_path: Path, writers: None) -> None:
    engine = Engine(toy.live(tmp_path / "index", toy.records(5)))
    body = {"passages": ["A new lamp.", {"_id": "x", "text": "Copper.", "lang": "en"}]}
    for headers in ({}, {"Authorization": "Bearer no"}, {"Authorization": f"Basic {TOKEN}"}):
        answer = one(engine, "POST", "/add", json=body, headers=headers)
        assert answer.status_code == 401 and "WWW-Authenticate" in answer.headers
    added = one(engine, "POST", "/add", json=body, headers=WRITER).json()
    assert added["ids"] == ["5", "x"] and added["passages"] == 7
    again = one(engine, "POST", "/add", json=body, headers=WRITER)
    assert again.status_code == 409 and "'x' is in the index already" in again.text
    assert str(tmp_path) not in again.text
    replaced = one(engine, "POST", "/add", json={**body, "replace": True}, headers=WRITER)
    assert replaced.json()["passages"] == 8
    half = rb'{"passages": [{"text": "half of a pair: \ud800"}]}'
    refused = one(engine, "POST", "/add", content=half, headers={**WRITER, **JSON})
    assert refused.status_code == 422 and "the field 'text' is" in refused.text
    gone = one(engine, "POST", "/delete", json={"ids": ["x", "y"]}, headers=WRITER).json()
    assert (gone["deleted"], gone["missing"], gone["passages"]) == (1, ["y"], 7)
    # What others change in the folder is seen too.
    LiveIndex(tmp_path / "index", encoder=toy.stub()).delete(["d0"])
    assert search(engine, query="x")["passages"] == 6


def test_without_a_token_nobody_writes(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert one(engine, "POST", "/add", json={"passages": ["x"]}).status_code == 403
    settings = Serving(token_file=str(tmp_path / "token"))
    (tmp_path / "token").write_text(TOKEN[::-1])
    body = {"json": {"ids": ["d1"]}, "headers": WRITER}
    assert one(engine, "POST", "/delete", settings=settings, **body).status_code == 401
    monkeypatch.setenv("QAC_SERVE_TOKEN", "short")
    with pytest.raises(UserError, match="QAC_SERVE_TOKEN holds a token of 5 characters"):
        Serving().token()


def test_searches_that_are_refused(engine: Engine) -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"query": "x" * 9000}, "at most 8000"),
        ({"query": "\ud800"}, "valid string"),
        ({"query": "x", "k": 0}, '"k": Input should be greater than or equal to 1'),
        ({"query": "x", "rerank": True}, "no cross-encoder"),
        ({"query": "x", "where": {"n": 10**400}}, "a finite number"),
        ({"query": "x", "where": {"n": float("nan")}}, "a finite number"),
        ({"query": "x", "where": {"lang": [[[[[["a"]]]]]]}}, "a finite number"),
        ({"query": "x", "where": {"\ud800": "a"}}, "a finite number"),
        ({"query": "x", "where": {"lnag": "en"}}, "'lnag'; did you mean 'lang'"),
        ({"query": "x", "wher": {}}, '"wher": Extra inputs'),
    )
    for body, sentence in cases:
        answer = one(engine, "POST", "/search", content=json.dumps(body), headers=JSON)
        assert answer.status_code == 422, body
        assert re.search(sentence, answer.json()["error"]["message"])
    for content in (b"{", b'{"query": "\xff"}', b"[" * 10_000, b'{"k": ' + b"9" * 5000 + b"}"):
        answer = one(engine, "POST", "/search", content=content, headers=JSON)
        assert answer.status_code in (400, 422) and answer.json()["error"]["message"], content[:30]


def test_other_requests_that_are_refused(engine: Engine) -> None:
    for request, status in (
        ({"content": b'{"query": "' + b"x" * 300_000, "headers": JSON}, 413),
        ({"content": b"query=x", "headers": {"Content-Type": "text/plain"}}, 422),
        ({"json": {"query": "x"}, "headers": {"Host": "evil.example"}}, 400),
    ):
        assert one(engine, "POST", "/search", **request).status_code == status
    assert one(engine, "GET", "/../../etc/passwd").status_code == 404
    for path, body in (("/search", b"[" * 60_000), ("/v1/embeddings", b"[{}," * 30_000)):
        assert one(engine, "POST", path, content=body, headers=JSON).status_code == 413
    answer = one(engine, "POST", "/v1/embeddings", json={"input": ["lamp " * 2_000] * 60})
    assert answer.status_code == 422 and "at most 500,000" in answer.text
    assert one(engine, "OPTIONS", "/search").headers.get("access-control-allow-origin") is None


def test_names_of_the_server() -> None:
    """Addresses and --hosts: what a page of someone else cannot have as its own name."""
    for host in ("0.0.0.0", "127.0.0.1"):
        settings = Serving(host=host, hosts=("search.example", "*.inner.example"))
        for name in ("localhost:80", "[::1]:8080", "10.1.2.3", "Search.example", "a.inner.example"):
            assert settings.called(name), name
        for name in ("", "rebound.example", "localhost@rebound.example", "[x]", "inner.example/"):
            assert not settings.called(name), name
    assert Serving(hosts=("*",)).called("any.example")


def test_readers_may_need_a_token(
    engine: Engine, writers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = TOKEN[::-1]
    monkeypatch.setenv("QAC_READ_TOKEN", token)
    basic = "Basic " + base64.b64encode(f"me:{token}".encode()).decode()
    for path in ("/search?q=lamp", "/", "/search.js", "/metrics", "/openapi.json", "/add%0A"):
        answer = one(engine, "GET", path)
        assert answer.status_code == 401 and answer.headers["WWW-Authenticate"].startswith("Basic")
    for given in (basic, f"Bearer {token}", WRITER["Authorization"]):
        answer = one(engine, "GET", "/search?q=lamp", headers={"Authorization": given})
        assert answer.status_code == 200
        body: dict[str, Any] = {"json": {"ids": ["none"]}, "headers": {"Authorization": given}}
        assert one(engine, "POST", "/delete", **body).status_code == (
            200 if body["headers"] == WRITER else 401
        )
    assert one(engine, "POST", "/delete%0A", json={"ids": ["x"]}).status_code == 401
    assert one(engine, "GET", "/health").status_code == 200


def test_agents_search_and_add_by_mcp(
    tmp_path: Path, writers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(toy.live(tmp_path / "index", toy.records(6)))

    def rpc(method: str, headers: Any = None, **params: Any) -> httpx2.Response:
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        return one(engine, "POST", "/mcp", json=body, headers=headers)

    def tool(tool: str, headers: Any = None, **arguments: Any) -> Any:
        return rpc("tools/call", headers, name=tool, arguments=arguments).json()

    begun = rpc("initialize", protocolVersion="2025-03-26", capabilities={}).json()
    assert begun["id"] == 7 and begun["result"]["protocolVersion"] == "2025-03-26"
    noted = one(engine, "POST", "/mcp", json={"jsonrpc": "2.0", "method": "notifications/x"})
    assert noted.status_code == 202 and one(engine, "GET", "/mcp").status_code == 405
    known = {each["name"]: each for each in rpc("tools/list").json()["result"]["tools"]}
    assert known["search"]["inputSchema"]["required"] == ["query"] and "add" in known
    added = tool("add", WRITER, passages=["Zebras have stripes."])["result"]
    found = tool("search", query="zebras", k=1)["result"]
    assert found["structuredContent"]["hits"][0]["id"] in added["structuredContent"]["ids"]
    assert json.loads(found["content"][0]["text"]) == found["structuredContent"]
    wrong = tool("search", query="zebras", where={"yeer": 1})["result"]
    assert wrong["isError"] and "no passage has the field" in wrong["content"][0]["text"]
    assert "k: " in tool("search", query="a", k=0)["result"]["content"][0]["text"]
    assert tool("drop")["error"]["code"] == -32602 and rpc("x").json()["error"]["code"] == -32601
    arguments = {"name": "add", "arguments": {"passages": ["x"]}}
    assert rpc("tools/call", **arguments).status_code == 401
    monkeypatch.setenv("QAC_READ_TOKEN", TOKEN[::-1])
    assert rpc("tools/list").status_code == 401
    monkeypatch.delenv("QAC_READ_TOKEN")
    monkeypatch.delenv("QAC_SERVE_TOKEN")
    assert [each["name"] for each in rpc("tools/list").json()["result"]["tools"]] == ["search"]
    assert len(engine.live) == 7


def test_clients_that_ask_too_often(engine: Engine) -> None:
    async def questions(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        return [await client.get("/v1/models") for _ in range(9)] + [await client.get("/health")]

    *answers, health = asked(engine, questions, traffic=Traffic(rate=0.5))
    assert [each.status_code for each in answers] == [200] * 6 + [429] * 3
    assert 1 <= int(answers[-1].headers["Retry-After"]) <= 2 and health.status_code == 200


def test_searches_do_not_wait_for_texts_that_are_encoded(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, sizes, answer = threading.Event(), [], Engine.answer

    def slow(self: Engine, batch: Sequence[Any]) -> list[Any]:
        if any(len(each.input[0]) > 512 for each in batch):
            sizes.append(sum(len(each.input) for each in batch))
            assert go.wait(20)
        return answer(self, batch)

    async def questions(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        bodies = (
            ("/v1/embeddings", {"input": ["lamp " * 200] * 40}),
            ("/search", {"query": "lamp " * 200}),
        )
        waiting = [asyncio.create_task(client.post(path, json=body)) for path, body in bodies]
        await asyncio.sleep(0.05)
        quick = [await client.post("/search", json={"query": "lamp"}) for _ in range(3)]
        go.set()
        return [*quick, *await asyncio.gather(*waiting)]

    monkeypatch.setattr(Engine, "answer", slow)
    monkeypatch.setattr(Engine, "tokens", lambda self, request: 7)
    answers = asked(engine, questions)
    assert [each.status_code for each in answers] == [200] * 5
    assert len(answers[3].json()["data"]) == 40 and max(sizes) <= 17


def test_hostile_texts_are_texts(engine: Engine) -> None:
    for text in ("<script>alert(1)</script>", "' OR 1=1 --", "\0", "../" * 9, "🦆\u202e", "(((("):
        where = {"lang": ["en", text]}
        answer = search(engine, query=text, highlight=True, facets=True, where=where)
        assert answer["query"] == text and answer["hits"]
        absent: dict[str, Any] = {"lang": {"not in": [text]}, text: None}
        assert search(engine, query=text, where=absent, k=60)["passages"] == 60


def test_an_error_says_nothing_of_the_inside(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(Engine, "answer", fails)
    answer = one(engine, "POST", "/search", json={"query": "x"})
    number = answer.json()["error"]["message"].split("error ")[1].split(";")[0]
    assert answer.status_code == 500 and "secret" not in answer.text
    assert number in caplog.text and "/secret/path" in caplog.text


def test_health_and_figures(engine: Engine) -> None:
    async def questions(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        await client.post("/search", json={"query": "copper"})
        return [await client.get(path) for path in ("/health", "/metrics")]

    health, figures = asked(engine, questions)
    assert health.json()["status"] == "ok" and health.json()["passages"] == 60
    lines = figures.text.splitlines()
    assert 'qac_request_seconds_count{path="/search",status="200"} 1.0' in lines
    assert "qac_passages 60.0" in lines and 'qac_batch_size_bucket{le="1.0"} 1.0' in lines


def test_the_page_asks_nobody_else(engine: Engine) -> None:
    for path in ("/", "/search.js", "/search.css", "/health", "/none", "/search"):
        answer = one(engine, "GET", path)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert "server" not in answer.headers
        text = answer.text.replace("https?:", "")
        assert "http://" not in text and "https://" not in text
        assert "innerHTML" not in text and "eval(" not in text and " style=" not in text


def test_requests_at_one_time_are_one_batch(engine: Engine) -> None:
    calls: list[int] = engine.live.encoder.calls  # type: ignore[attr-defined]
    calls.clear()

    async def questions(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        words = [f"copper {number % 3}" for number in range(12)]
        tasks = [client.post("/search", json={"query": word, "k": 2}) for word in words]
        return await asyncio.gather(*tasks)

    answers = asked(engine, questions)
    assert [answer.status_code for answer in answers] == [200] * 12
    # Three distinct texts; perhaps the first came alone.
    assert sum(calls) <= 4
    for number, answer in enumerate(answers):
        assert answer.json()["hits"] == answers[number % 3].json()["hits"]


def test_a_folder_that_another_process_writes_is_busy(tmp_path: Path, writers: None) -> None:
    engine = Engine(toy.live(tmp_path / "index", toy.records(3)))
    with artifacts.locked(engine.live.folder):
        answer = one(engine, "POST", "/delete", json={"ids": ["d1"]}, headers=WRITER)
    assert answer.status_code == 503 and answer.headers["Retry-After"]
    assert "process" not in answer.text


# Batches: what comes together is answered together, and no more than the queue holds.


def test_a_full_queue_refuses_and_what_it_took_is_answered() -> None:
    go = threading.Event()

    def work(items: Sequence[int]) -> Sequence[int]:
        go.wait(5)
        return items

    async def run() -> tuple[int, list[Any]]:
        made = Batcher(work, most=1, wait=0.005, queue=3)
        first = asyncio.create_task(made.submit(-1))
        await asyncio.sleep(0.02)
        rest = [asyncio.create_task(made.submit(n)) for n in range(6)]
        await asyncio.sleep(0.02)
        waiting = len(made)
        closing = asyncio.create_task(made.close())
        go.set()
        answers = await asyncio.gather(first, *rest, return_exceptions=True)
        await closing
        with pytest.raises(HTTPException, match="stopping"):
            await made.submit(9)
        return waiting, answers

    waiting, answers = asyncio.run(run())
    refused = [a for a in answers if isinstance(a, HTTPException)]
    assert waiting == 3 and answers[:4] == [-1, 0, 1, 2]
    assert [(a.status_code, a.headers) for a in refused] == [(503, {"Retry-After": "1"})] * 3


def test_all_of_a_batch_get_its_error_and_the_next_is_answered() -> None:
    def work(items: Sequence[int]) -> Sequence[int]:
        assert len(items) <= 4
        if 13 in items:
            raise RuntimeError("the whole batch")
        return items

    async def run() -> list[Any]:
        made = Batcher(work, most=4, wait=0.005, queue=20)
        several = (made.submit(n) for n in (*range(8), 13, 14))
        answers = await asyncio.gather(*several, return_exceptions=True)
        after = await made.submit(2)
        await made.close()
        return [*answers, after]

    *first, wrong, beside, after = asyncio.run(run())
    assert first == [*range(8)] and after == 2
    assert isinstance(wrong, RuntimeError) and isinstance(beside, RuntimeError)


class Stub:
    """An encoder whose texts are their lengths and vectors their sums."""

    def __init__(self, copies: int, limit: int = 64):
        self.runner: Any = SimpleNamespace(copies=copies)
        for name in ("rows", "run"):
            setattr(self.runner, name, functools.partial(getattr(Runner, name), self.runner))
        self.limits, self.tokenizer = {"query": limit}, SimpleNamespace(pad_id=0)
        self.width, self.shapes = 1, list[tuple[int, ...]]()

    def tokenize(self, texts: list[str], side: str) -> list[list[int]]:
        return [[number % 7 + 1] * int(text) for number, text in enumerate(texts)]

    def apply(self, ids: np.ndarray, lengths: np.ndarray, side: str) -> np.ndarray:
        self.shapes.append(ids.shape)
        there = np.arange(ids.shape[1]) < lengths[:, None]
        return np.where(there, ids, 0).sum(1, keepdims=True).astype(np.float32)


def test_each_text_gets_its_vector_whatever_the_lengths() -> None:
    rng = np.random.default_rng(0)
    for (copies, most), count, longest in itertools.product(
        [(1, 1), (8, 6), (1, 32)], (0, 1, 8, 15, 40), (6, 64, 90)
    ):
        stub = Stub(copies, limit=longest)
        texts = [str(n) for n in rng.integers(3, longest + 1, count)]
        expected = [[sum(row)] for row in stub.tokenize(texts, "query")]
        found = QueryEncoder(cast(Encoder, stub), most).encode(texts, "query")
        np.testing.assert_array_equal(found, np.reshape(expected, (-1, 1)))


def test_what_is_compiled_beforehand_is_what_short_queries_take() -> None:
    for copies in (1, 8):
        stub = Stub(copies)
        encoder = QueryEncoder(cast(Encoder, stub), 32)
        encoder.warm()
        known = set(stub.shapes)
        assert len(known) == len(stub.shapes) <= 24
        for count in (1, 5, 32):
            encoder.encode([str(3 + 29 * n // count) for n in range(count)], "query")
        assert set(stub.shapes) == known


@pytest.mark.slow
@pytest.mark.parametrize("name", toy_configs.every(16))
def test_without_padding_vectors_are_the_padded_ones(name: str) -> None:
    """A short batch whose last rows are empty."""
    pooling = "cls" if name in ("roberta", "modernbert") else "mean"
    config = DualEncoderConfig(toy_configs.every(16)[name], pooling=pooling, normalize=True)
    lengths = np.array([3, 8, 1, 5, 0, 0], np.int32)
    ids = np.random.default_rng(0).integers(5, 40, (6, 8), np.int32)
    ids = np.where(np.arange(8) < lengths[:, None], ids, 0)
    module = DualEncoder(config, Runtime(scan=True))
    rows = DualEncoder(config, Runtime(scan=True, packed=((8, 24 / 48),)))
    variables = nn.unbox(jax.jit(module.init)(jax.random.key(0), ids, lengths))
    # Large matrices, so that attention differs from text to text.
    variables = jax.tree.map(lambda x: 12 * x if x.ndim > 1 else x, variables)
    expected, found = (
        np.asarray(jax.jit(each.apply)(variables, ids, lengths))[:4] for each in (module, rows)
    )
    assert np.ptp(expected, axis=0).max() > 0.05
    np.testing.assert_allclose(found, expected, atol=2e-6)
