"""A headless Chromium, driven over a pipe by the DevTools protocol: no driver to install."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any


PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
)
_KEYS = {"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, "")}


class Browser:
    """One page."""

    def __init__(self, profile: Path):
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()

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
        self._number, self._rest = 0, b""
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
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 60
        while True:
            answer = self._next(end)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._read], [], [], max(end - time.monotonic(), 0))[0], "silent"
            self._rest += os.read(self._read, 1 << 20)
        first, self._rest = self._rest.split(b"\0", 1)
        return json.loads(first)

    def open(
        self, address: str, *, width: int = 1200, height: int = 900, dark: bool = False
    ) -> None:
        self.events.clear()
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
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
            assert time.monotonic() < end, f"{script}; the page: {self.text()[:500]}"
            time.sleep(0.03)
        return found

    def text(self) -> str:
        return self.value("document.body.innerText")

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        code, text = _KEYS[key] if key in _KEYS else (ord(key.upper()), key)
        down = {"key": key, "windowsVirtualKeyCode": code, **({"text": text} if text else {})}
        self.call("Input.dispatchKeyEvent", type="keyDown", **down)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def complaints(self) -> list[str]:
        """Errors of the console, of the policy, of scripts."""
        self.value("1")
        found = []
        for event in self.events:
            if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                found.append(json.dumps(event["params"])[:500])
        return found

    def requested(self) -> set[str]:
        """The addresses that the page has asked for."""
        sent = [e["params"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return {event["request"]["url"] for event in sent}
