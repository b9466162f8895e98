"""`qac generate` and `qac label` with a language model behind an address."""

import contextlib
import dataclasses
import itertools
import json
import math
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import toy_examples
import toy_process
from toy_generation import save_generator

from qac_jax import artifacts, cli
from qac_jax.formats.records import Records
from qac_jax.inference import asking, endpoint
from qac_jax.inference.generator import Generator, Request
from qac_jax.models.decoding.settings import Decoding
from qac_jax.pipeline import costs, recipe
from qac_jax.stages.generate import Generate
from qac_jax.stages.prepare import Prepare


PASSAGES = 12
SECRET = "sk-very-secret-0123"
ONE = ("--concurrency", 1)


def said(prompt: str) -> str:
    """Of each kind a query, from the passage's number."""
    n = prompt.rsplit("number ", 1)[1].split()[0]
    return f"question: what is {n}?\nkeywords: wire {n}\nclaim: {n} is\nabout: {n}"


class Endpoint(ThreadingHTTPServer):
    """A server of OpenAI's protocol that answers as a test says, with faults before the answers."""

    def __init__(self, answer: Callable[[str], str]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        # A status, headers and a text; None: the connection ends.
        self.faults: list[tuple[int, dict[str, str], str] | None] = []
        self.asked, self.bodies, self.keys = list[str](), list[Any](), list[str | None]()
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.name = f"openai:{self.url}#toy"


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.keys.append(self.headers.get("authorization"))
        if self.server.faults:
            if fault := self.server.faults.pop(0):
                self._send(*fault)
            return
        prompt = body["messages"][0]["content"]
        self.server.asked.append(prompt)
        self.server.bodies.append(body)
        choice = {"message": {"content": self.server.answer(prompt)}}
        used = {"prompt_tokens": 30, "completion_tokens": 10}
        self._send(200, {}, json.dumps({"choices": [choice], "usage": used}))

    def _send(self, status: int, headers: dict[str, str], text: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(text.encode()))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def serving(answer: Callable[[str], str]) -> Iterator[Endpoint]:
    with Endpoint(answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield server
        finally:
            server.shutdown()


@dataclasses.dataclass
class Road:
    """A folder with passages, and a server."""

    folder: Path
    server: Endpoint
    capture: pytest.CaptureFixture[str]

    def qac(self, *words: Any) -> str:
        """What the command says where it fails, or else nothing."""
        failed = cli.main([str(word) for word in words])
        shown = self.capture.readouterr()
        assert "secret" not in shown.err + shown.out
        return shown.err if failed else ""

    def words(self, *more: Any, name: str = "", out: str = "out") -> list[Any]:
        given = ["--generator", name or self.server.name, "--samples", 1, *more]
        return ["generate", "--passages", self.folder / "p", "--out", self.folder / out, *given]

    def generate(self, *more: Any, **names: str) -> str:
        return self.qac(*self.words(*more, **names))

    def contexts(self, out: str = "out") -> list[tuple[str, str]]:
        records = Records(artifacts.load(self.folder / out, "contexts"))
        return [(c["origin"], c["text"]) for r in records for c in r["contexts"]]

    def all_once(self) -> bool:
        return len(self.server.asked) == len(set(self.server.asked)) == PASSAGES


@pytest.fixture
def road(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Road]:
    monkeypatch.setattr(endpoint, "_FIRST_WAIT", 0.01)
    for name in (endpoint.ALLOW, endpoint.KEY):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(endpoint.USUAL_KEY, SECRET)
    texts = [f"Copper wire number {n} conducts heat." for n in range(PASSAGES)]
    of = {"doc": "d", "position": 0, "title": ""}
    passages = [{"_id": f"p{n}", **of, "text": text} for n, text in enumerate(texts)]
    toy_examples.written(tmp_path / "p", "passages", passages)
    with serving(said) as server:
        yield Road(tmp_path, server, capsys)


@pytest.mark.slow
def test_a_model_behind_an_address_writes_what_it_writes_here(road: Road) -> None:
    t5 = save_generator(road.folder / "t5")
    how = ["--method", "greedy", "--max_tokens", 6]
    road.generate(*how, name=str(t5), out="here")
    model = Generator.load(t5, Decoding(method="greedy", max_tokens=6, samples=1))

    def answer(prompt: str) -> str:
        request = Request("", prompt.rpartition("\n\n")[2], before="text2query: ")
        return model.generate([request])[0][0].text

    road.server.answer = answer
    kinds = "--gin.asking.Asking.kinds={'text2query': 'a question'}"
    assert not road.generate(*how, kinds, *ONE, out="there")
    assert road.contexts("here") == road.contexts("there") and len(road.contexts("here")) > 8


def test_every_fault_that_passes_is_tried_again(road: Road) -> None:
    road.server.faults = [
        (429, {"retry-after": "0.3"}, "{}"),
        (503, {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, "busy"),
        None,
        (200, {}, "no JSON"),
        (200, {}, '{"choices": []}'),
    ]
    assert not road.generate(*ONE, "--method", "greedy") and road.all_once()
    kinds = [("question", "what is 1?"), ("keywords", "wire 1"), ("claim", "1 is"), ("about", "1")]
    assert road.contexts()[4:8] == kinds
    sent = {"seed": 0, "temperature": 0, "top_p": 0.95, "model": "toy", "max_tokens": 256}
    assert {**road.server.bodies[0], "messages": 0} == {**sent, "messages": 0}
    cost = {"tokens_read": 30 * PASSAGES, "tokens_written": 10 * PASSAGES}
    who = {"host": "127.0.0.1", "model": "toy", "answers": PASSAGES, "unreadable": 0}
    assert artifacts.load(road.folder / "out").info["language_model"] == who | cost


@pytest.mark.parametrize(
    "fault, sentence",
    [
        ((401, {}, f"Incorrect API key: {SECRET}"), "the key is not taken (HTTP 401)"),
        ((404, {}, "no such model"), "HTTP 404, no such model; check"),
        ((307, {"location": "http://127.0.0.1:9/v1"}, ""), "it redirects (HTTP 307)"),
        ((400, {}, f"seed {SECRET}?"), "HTTP 400, seed ***?"),
        ((500, {}, "x"), "did not answer in 1 attempts (HTTP 500)"),
    ],
)
def test_what_does_not_pass_is_a_sentence_and_nothing_is_asked_twice(
    fault: Any, sentence: str, road: Road
) -> None:
    calls = itertools.count()

    def answer(prompt: str) -> str:
        road.server.faults = [fault] if next(calls) == 4 else []
        return said(prompt)

    road.server.answer = answer
    assert sentence in road.generate(*ONE, "--retries", 0) and len(road.server.asked) == 5
    (journal,) = (road.folder / "out").glob(".scratch/answers/*.jsonl")
    with journal.open("a") as file:
        file.write('["cut off')  # as SIGKILL may leave it
    assert not road.generate() and road.all_once()
    assert set(road.server.keys) == {f"Bearer {SECRET}"}  # http, but this machine


@pytest.mark.slow
def test_killed(road: Road) -> None:
    asked = road.server.asked
    toy_process.kill_when(lambda: len(asked) > 4, *road.words(*ONE))
    assert len(asked) < PASSAGES and not road.generate(*ONE)
    assert len(asked) <= PASSAGES + 1 and len(set(asked)) == PASSAGES


def test_a_limit_stops_and_what_is_answered_is_kept(road: Road) -> None:
    said = road.generate("--max_tokens_total", 600)
    assert "stopped before --max_tokens_total=600" in said
    assert 40 < 40 * len(road.server.asked) < 600 and len(road.server.asked) < PASSAGES
    moved = road.server.name.replace("/v1", "/v1/")  # the same model there
    assert not road.generate("--max_tokens_total", 5000, name=moved) and road.all_once()


def test_the_key_is_in_no_file(road: Road, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(endpoint.KEY, "another-long-secret")
    road.server.answer = lambda _: f"question: {road.server.keys[0]} {len(road.server.asked)}"
    assert not road.generate() and road.server.keys[0] == "Bearer another-long-secret"
    files = [path.read_bytes() for path in (road.folder / "out").rglob("*") if path.is_file()]
    assert any(b"Bearer ***" in text for text in files)
    assert not any(b"secret" in text for text in files)


def test_texts_go_where_the_command_line_says(road: Road, monkeypatch: Any) -> None:
    file = road.folder / "strange.gin"
    file.write_text(f"generate.Generate.generator = '{road.server.name}'\n")
    given = ["generate", "--passages", road.folder / "p", "--gin_file", file]
    given += ["--out", road.folder / "out"]
    assert "would get your texts" in road.qac(*given) and not road.server.keys
    monkeypatch.setenv(endpoint.ALLOW, f"http://x/v1,{road.server.url}")
    assert not road.qac(*given) and road.server.keys
    for bad in ("https://user:secret@host/v1#m", "https://host/v1?key=secret#m"):
        assert "address at host holds" in road.generate(name=f"openai:{bad}", out="no")
        assert not (road.folder / "no").exists()


def test_a_model_that_writes_no_queries_is_left_early(road: Road, monkeypatch: Any) -> None:
    monkeypatch.setattr(endpoint, "_TRIED", 3)
    road.server.answer = lambda _: "<think>so"
    assert "no answer of toy could be read" in road.generate(*ONE)
    assert len(road.server.asked) <= 5


@pytest.mark.parametrize(
    "text",
    [
        "question: how?\nclaim: it is\nquestion: why: so?",
        "<think>claim: no</think>Here you are:\n\n1. **Question:** how?\n- claim 1: *it is*\n"
        '2. question: "why: so?"\nquestion: a third?\nother: x',
        '```json\n{"question": ["how?", "why: so?"], "claim": "it is"}\n```',
        '[{"kind": "question", "query": "how?"}, {"kind": "claim", "text": "it is"}, '
        '{"kind": "question", "query": "why: so?"}, 3]',
    ],
)
def test_queries_of_an_answer(text: str) -> None:
    choice = {"message": {"content": text}}
    wanted = [("question", "how?"), ("question", "why: so?"), ("claim", "it is")]
    assert asking.queries(choice, {"question": "", "claim": ""}, 2) == wanted


def test_what_is_cut_off_is_no_query() -> None:
    choice = {"message": {"content": "1. how?\n2. why is th"}, "finish_reason": "length"}
    assert asking.queries(choice, {"question": ""}, 2) == [("question", "how?")]


def test_grades() -> None:
    likely = [{"token": t, "logprob": math.log(p)} for t, p in ((" 3", 0.6), ("2", 0.2), ("x", 1))]
    tokens = [{"token": " "}, {"token": "3", "top_logprobs": likely}]
    choice: dict[str, Any] = {"message": {"content": "Grade: 2."}}
    assert asking.grade({**choice, "logprobs": None}) == 2
    assert asking.grade({**choice, "logprobs": {"content": tokens}}) == pytest.approx(2.75)
    with pytest.raises(IndexError):
        asking.grade({"message": {"content": "10 of 30"}})


def test_a_judge_labels(road: Road) -> None:
    queries, run = road.folder / "queries.tsv", road.folder / "run.trec"
    queries.write_text("q1\tnumber 3\nq2\tnumber 99\n")
    ranked = [f"{q} Q0 p{n} {n + 1} {9 - n} x\n" for q in ("q1", "q2") for n in range(6)]
    run.write_text("".join(ranked))

    def answer(prompt: str) -> str:
        query, passage = (part.split("number ")[1].split()[0] for part in prompt.split("\n\n")[1:])
        return "3" if query == passage else "no grade" if passage == "1" else "0"

    road.server.answer = answer
    given = ["--queries", queries, "--candidates", run, "--teacher", road.server.name]
    given += ["--passages", road.folder / "p", "--out", road.folder / "out"]
    assert not road.qac("label", *given)
    artifact = artifacts.load(road.folder / "out", "negatives")
    (record,) = Records(artifact)
    assert (record["positives"], record["negatives"]) == (["p3"], ["p0", "p2", "p4", "p5"])
    assert record["positives_scores"] == [pytest.approx(math.log(99), rel=1e-5)]
    assert artifact.info["language_model"]["answers"] == 12


def test_tokens_are_known_beforehand(road: Road) -> None:
    assert cli.main([str(word) for word in road.words("--dry_run", "--json")]) == 0
    (stage,) = json.loads(road.capture.readouterr().out)["stages"]
    plan = stage["plan"]
    assert (plan["count"], plan["texts"]) == (PASSAGES, 4 * PASSAGES) and not road.server.keys
    assert 150 < plan["tokens_read"] / PASSAGES < 250 and plan["tokens_written"] == 80 * PASSAGES
    questions = Generate(passages="stage:p", generator=road.server.name)
    stages = {"p": Prepare(documents="x"), "q": questions}
    totals = costs.totals(recipe.plan(recipe.Recipe(stages), {"p": 1000}))
    assert "tokens of language models, about: 254k read, 400k written" in str(costs.shown(totals))
