"""The page of `qac serve` in a headless Chromium."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium
import pytest
import toy_live as toy
import uvicorn

from qac_jax.serving import app
from qac_jax.serving.engine import Engine


pytestmark = [pytest.mark.slow, pytest.mark.skipif(not chromium.PROGRAM, reason="needs Chromium")]

HOSTILE: list[dict[str, Any]] = [
    {
        "_id": "<b id=x>",
        "title": "</h2><script>window.broken = 1</script>hostile",
        "text": "hostile <img src=x onerror='window.broken = 1'> &lt;b&gt; {{title}} ${1} \u202e",
        "url": "javascript:window.broken=1",
        "<i>lang</i>": "<svg onload=window.broken=1>",
        "__proto__": "left",
    },
    {"_id": "w", "title": "hostile " + "W" * 300, "text": "hostile " + "wide" * 500},
    {"_id": "constructor", "title": "link", "text": "hostile", "url": "https://example.org/a"},
]
SHOWN = "document.querySelectorAll('article').length"
STATUS = "document.getElementById('status').textContent"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    passages = [{**record, "tags": []} for record in toy.records(60)]
    live = toy.live(tmp_path_factory.mktemp("page") / "index", [*passages, *HOSTILE])
    config = uvicorn.Config(app.make(Engine(live)), port=0, log_config=None, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    made = chromium.Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def clean(browser: chromium.Browser, address: str) -> Iterator[None]:
    """After every test: nothing broken, nobody else asked."""
    yield
    assert browser.complaints() == []
    assert browser.value("window.broken") is None
    assert all(url.startswith((address, "data:")) for url in browser.requested())


def click(browser: chromium.Browser, selector: str) -> None:
    browser.value(f"document.querySelector({selector!r}).click()")


def test_typing_marked_words_pages_and_links(browser: chromium.Browser, address: str) -> None:
    browser.open(address)
    browser.until("document.activeElement.id === 'query'")
    browser.type("copper lamps")
    browser.press("Enter")
    browser.until(f"{STATUS}.startsWith('Hits 1 to 10, 63 passages')")
    marked = browser.value("[...document.querySelectorAll('mark')].map(m => m.textContent)")
    assert {text.lower() for text in marked} == {"copper", "lamp"}
    facts = browser.value("document.querySelector('article dl').textContent")
    assert "dense" in facts and "bm25" in facts and "lang" in facts
    browser.press("Escape")
    browser.press("n")
    browser.until(f"{STATUS}.startsWith('Hits 11 to 20')")
    assert "offset=10" in browser.value("location.search")
    browser.open(browser.value("location.href"))
    browser.until(f"{STATUS}.startsWith('Hits 11 to 20')")
    click(browser, "#previous")
    browser.until(f"{STATUS}.startsWith('Hits 1 to 10')")
    assert browser.value("document.getElementById('previous').disabled")
    click(browser, "input[value=all]")
    browser.until("document.querySelectorAll('.trio section').length === 3")
    assert browser.value("document.querySelector('.trio').innerText").count("rank") > 5
    assert "mode=all" in browser.value("location.search")


@pytest.mark.parametrize("mode", ["hybrid", "all"])
def test_hostile_texts_are_texts(browser: chromium.Browser, address: str, mode: str) -> None:
    browser.open(f"{address}?q=hostile+<script>window.broken=1</script>&mode={mode}")
    browser.until(f"{SHOWN} >= 3")
    shown = browser.text()
    assert "<script>window.broken = 1</script>" in shown and "<img src=x" in shown
    assert browser.value("document.querySelectorAll('main img, main script, main svg').length") == 0
    links = browser.value("[...document.querySelectorAll('main a')].map(a => a.href)")
    assert set(links) <= {"https://example.org/a"} and (links or mode in ("hybrid", "dense"))


@pytest.mark.parametrize(("width", "dark"), [(320, False), (768, True)])
def test_every_width(browser: chromium.Browser, address: str, width: int, dark: bool) -> None:
    for query in ("hostile", "copper+lamp&mode=all"):
        browser.open(f"{address}?q={query}", width=width, dark=dark)
        browser.until(f"{SHOWN} >= 3")
        assert browser.value("document.documentElement.scrollWidth") <= width
    back = browser.value("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(21, 23, 26)") == dark


def test_accessibility(browser: chromium.Browser, address: str) -> None:
    """axe-core finds nothing."""
    package = pytest.importorskip("axe_core_python")
    script = (Path(package.__path__[0]) / "axe.min.js").read_text()
    for query, dark in (("?q=copper+lamp", True), ("?q=copper&mode=all", False)):
        browser.open(address + query, dark=dark)
        browser.until(f"{SHOWN} >= 3")
        browser.value(f"{script}; 0")
        violations = "r => r.violations.map(v => [v.id, v.impact, v.nodes[0].html])"
        assert browser.value(f"axe.run().then({violations})") == []
