"""The page of `qac serve` in a headless Chromium."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import toy_live as toy
import uvicorn

from qac_jax.report.gathering import Content
from qac_jax.report.render import html
from qac_jax.serving import app
from qac_jax.serving.engine import Engine


PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
)
_KEYS = {"Enter": (13, "\r"), "Escape": (27, "")}
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PROGRAM, reason="needs Chromium")]

_ODD = ("constructor", "__proto__", "toString")
HOSTILE: list[dict[str, Any]] = [
    {
        "_id": "<b id=x>",
        "title": "</h2><script>window.broken = 1</script>hostile",
        "text": "hostile <img src=x onerror='window.broken = 1'> &lt;b&gt; {{title}} ${1} \u202e",
        "url": "javascript:window.broken=1",
        "<i>lang</i>": "<svg onload=window.broken=1>",
    },
    {"_id": "w", "title": "hostile " + "W" * 300, "text": "hostile " + "wide" * 500},
    {"_id": "constructor", "title": "link", "text": "hostile", "url": "https://example.org/a"},
]
for _number, _record in enumerate(HOSTILE):  # no two of the fields say the same
    _record |= {field: "left" if at == _number else "right" for at, field in enumerate(_ODD)}
SHOWN = "document.querySelectorAll('article').length"
STATUS = "document.getElementById('status').textContent"


class Browser:
    """One page, driven over a pipe by the DevTools protocol: no driver to install."""

    def __init__(self, profile: Path):
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        commands, write = os.pipe()
        read, answers = os.pipe()
        self._write, self._answers = os.fdopen(write, "wb", 0), os.fdopen(read, "rb")
        # Numbers above 4, so that neither is overwritten before it is copied there. A shell does
        # that: Python code in the child (preexec_fn) is not safe beside JAX's threads.
        passed = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (commands, answers)]
        plugged = f'exec "$@" 3<&{passed[0]} 4>&{passed[1]}'
        command = [PROGRAM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", plugged, "bash", *command], pass_fds=passed, stderr=subprocess.DEVNULL
        )
        for end in (commands, answers, *passed):
            os.close(end)
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self._session = ""
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._write.close()
        self._answers.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._write.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(b"".join(iter(lambda: self._answers.read(1), b"\0")))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)

    def open(self, address: str, *, width: int = 1200, dark: bool = False) -> None:
        self.events.clear()
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete'")

    def value(self, script: str) -> Any:
        """What a script of the page gives."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str, seconds: float = 20) -> Any:
        """Waits until a script gives something."""
        end = time.monotonic() + seconds
        while not (found := self.value(script)):
            assert time.monotonic() < end, script
            time.sleep(0.03)
        return found

    def press(self, key: str) -> None:
        code, text = _KEYS[key] if key in _KEYS else (ord(key.upper()), key)
        down = {"key": key, "windowsVirtualKeyCode": code, **({"text": text} if text else {})}
        self.call("Input.dispatchKeyEvent", type="keyDown", **down)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def complaints(self) -> list[str]:
        """Errors of the console, of the policy, of scripts."""
        self.value("1")
        bad = ("Log.entryAdded", "Runtime.exceptionThrown")
        return [str(e["params"])[:500] for e in self.events if e.get("method") in bad]

    def requested(self) -> set[str]:
        """The addresses that the page has asked for."""
        sent = [e["params"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return {event["request"]["url"] for event in sent}


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
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def clean(browser: Browser, address: str) -> Iterator[None]:
    """After every test: nothing broken, nobody else asked."""
    yield
    assert browser.complaints() == []
    assert browser.value("window.broken") is None
    assert all(url.startswith((address, "data:")) for url in browser.requested())


def click(browser: Browser, selector: str) -> None:
    browser.value(f"document.querySelector({selector!r}).click()")


def test_typing_marked_words_pages_and_links(browser: Browser, address: str) -> None:
    browser.open(address)
    browser.until("document.activeElement.id === 'query'")
    browser.call("Input.insertText", text="copper lamps")
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
def test_hostile_texts_are_texts(browser: Browser, address: str, mode: str) -> None:
    browser.open(f"{address}?q=hostile+<script>window.broken=1</script>&mode={mode}")
    browser.until(f"{SHOWN} >= 3")
    shown = browser.value("document.body.innerText")
    assert "<script>window.broken = 1</script>" in shown and "<img src=x" in shown
    assert browser.value("document.querySelectorAll('main img, main script, main svg').length") == 0
    links = browser.value("[...document.querySelectorAll('main a')].map(a => a.href)")
    assert set(links) <= {"https://example.org/a"} and (links or mode in ("hybrid", "dense"))


@pytest.mark.parametrize(
    ("query", "name", "value", "left"),
    [("copper+lamp", "lang", "de", 10), ("hostile", "constructor", "left", 1),
     ("hostile", "__proto__", "left", 1), ("hostile", "toString", "left", 1)],
)  # fmt: skip
def test_filters(
    browser: Browser, address: str, query: str, name: str, value: str, left: int
) -> None:
    """Also of fields that are called as parts of the language."""
    browser.open(f"{address}?q={query}&mode=constructor")
    groups = "[...document.querySelectorAll('aside details')]"
    group = f"{groups}.find(d => d.innerText.startsWith('{name}'))"
    label = f"[...{group}.querySelectorAll('label')].find(l => l.innerText.startsWith('{value}'))"
    browser.until(f"!!({group})")
    browser.value(f"{label}.click()")
    facts = "[...document.querySelectorAll('article dl')]"
    fit = f"{facts}.every(d => d.textContent.includes('{name}{value}')) && {SHOWN} === {left}"
    browser.until(f"location.search.includes('where') && {fit}")
    browser.open(browser.value("location.href"))
    browser.until(f"{SHOWN} === {left} && {label}.querySelector('input').checked")
    browser.value(f"{label}.click()")
    browser.until("!location.search.includes('where')")


def test_why_this_hit_by_keyboard(browser: Browser, address: str) -> None:
    browser.open(f"{address}?q=copper+lamp")
    browser.until(f"{SHOWN} === 10")
    browser.press("j")
    browser.press("j")
    at = "[...document.querySelectorAll('article')].indexOf(document.activeElement)"
    assert browser.value(at) == 1
    browser.press("w")
    shown = "document.querySelector('.why ul') && document.querySelector('.why').innerText"
    why = browser.until(shown)
    assert "Words in common" in why and "Nearest sentences" in why
    browser.press("w")
    browser.until("!document.querySelector('.why')")


@pytest.mark.parametrize(("width", "dark"), [(320, False), (768, True)])
def test_every_width(browser: Browser, address: str, width: int, dark: bool) -> None:
    for query in ("hostile", "copper+lamp&mode=all"):
        browser.open(f"{address}?q={query}", width=width, dark=dark)
        browser.until(f"{SHOWN} >= 3")
        assert browser.value("document.documentElement.scrollWidth") <= width
    back = browser.value("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(21, 23, 26)") == dark


def complaints_of_axe(browser: Browser) -> Any:
    package = pytest.importorskip("axe_core_python")
    browser.value(f"{(Path(package.__path__[0]) / 'axe.min.js').read_text()}; 0")
    violations = "r => r.violations.map(v => [v.id, v.impact, v.nodes[0].html])"
    return browser.value(f"axe.run().then({violations})")


def test_accessibility(browser: Browser, address: str) -> None:
    for query, dark in (("?q=copper+lamp", True), ("?q=copper&mode=all", False)):
        browser.open(address + query, dark=dark)
        browser.until(f"{SHOWN} >= 3")
        if "all" not in query:
            click(browser, ".ask")
            browser.until("!!document.querySelector('.why ul')")
        assert complaints_of_axe(browser) == []


def test_a_report_on_a_phone(browser: Browser) -> None:
    """Tables scroll, the page does not."""
    asked = {"test": {"count": 1200, "makers": "people", "filters": "not well-formed: 61"}}
    content = Content(
        "Stones", gin=f"a = '{'W' * 99}'", conclusion={"verdict": [], "questions": asked}
    )
    page = base64.b64encode(html(content).encode()).decode()
    browser.open(f"data:text/html;base64,{page}", width=390)
    browser.value("document.querySelectorAll('details').forEach(d => d.open = true)")
    table = "document.querySelector('.scroll')"
    assert browser.value(f"{table}.scrollWidth > {table}.clientWidth")
    assert browser.value("document.documentElement.scrollWidth") <= 390
    assert complaints_of_axe(browser) == []
