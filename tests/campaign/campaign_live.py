"""Living indexes: kills while they change, by the command line and under a server."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import shutil
import signal
import time
from typing import Any

from campaign_kills import spread
from campaign_lab import TOKEN, Lab, Outcome

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.live.index import LiveIndex


CHANGES = {
    "add": "index kill/live --add ref/more_vectors",
    "delete": "index kill/live --delete d1 d2 d3",
    "replace": "index kill/live --replace ref/vectors",
    "compact": "compact kill/live --full",
}
LIVING = {**dict.fromkeys(CHANGES, 2), "serve": 1}
FOLDER = "kill/live"
_ADDS = 4
_ids: dict[str, tuple[list[str], int]] = {}


def ids(lab: Lab) -> list[str]:
    """The passages that an index has, in order; raises UserError where it is damaged."""
    artifacts.load(lab.work / FOLDER).verify()
    snapshot = LiveIndex(lab.work / FOLDER).snapshot
    pairs = zip(snapshot.segments, snapshot.alive, strict=True)
    return [part.ids[row] for part, alive in pairs for row in alive.nonzero()[0].tolist()]


def base(lab: Lab) -> None:
    """A fresh copy of an index of forty passages, one of which was deleted."""
    made = lab.work / "ref/live"
    if not (made / artifacts.COMMIT).exists():
        shutil.rmtree(made, ignore_errors=True)
        for words in ("--add ref/vectors", "--delete d0"):
            done = lab.run(["index", "ref/live", *words.split()])
            assert done.code == 0, done.error
    lab.clear(FOLDER)
    shutil.copytree(made, lab.work / FOLDER)


def whole(lab: Lab, name: str) -> tuple[list[str], int]:
    """What an uninterrupted change leaves, and how many operations it has."""
    if name not in _ids:
        base(lab)
        done = lab.run(CHANGES[name].split(), watch=FOLDER, count=True)
        assert done.code == 0, done.error
        _ids[name] = sorted(ids(lab)), int(lab.output("run", "count"))
    return _ids[name]


def kill(lab: Lab, name: str, number: int, rng: random.Random) -> Outcome:
    """It is the old index or the new one; then the change can be made."""
    if name == "serve":
        return _serve(lab, number, rng)
    outcome, (after, total) = Outcome(), whole(lab, name)
    base(lab)
    before = sorted(ids(lab))
    at, delay = spread(name, number, total), rng.choice((0.0, 0.0, 0.001, 0.01))
    died = lab.run(CHANGES[name].split(), watch=FOLDER, at=at, delay=delay)
    outcome.landed = int(died.code < 0)
    changed(lab, outcome, name, before, after, f"operation {at} of {total} and {delay * 1e3:g} ms")
    return outcome


def changed(
    lab: Lab, outcome: Outcome, name: str, before: list[str], after: list[str], where: str
) -> None:
    """Checks the index after an interrupted change, and makes the change."""
    try:
        found = sorted(ids(lab))
    except UserError as error:
        outcome.fault("lost", f"{where}: {error}")
        return
    if found not in (before, after):
        outcome.fault("half", f"{where}: {len(found)} passages")
    done = lab.run(CHANGES[name].split(), watch=FOLDER)
    if done.traceback:
        outcome.fault("traceback", f"{where}: {done.error[-600:]}")
    elif done.code and found != after:  # what is added or deleted already is refused
        outcome.fault("lost", f"{where}: {done.said}")
    elif sorted(ids(lab)) != after:
        outcome.fault("different", f"{where}: {len(ids(lab))} passages")


def _serve(lab: Lab, number: int, rng: random.Random) -> Outcome:
    """A server is killed while a client adds: what it has acknowledged is there."""
    outcome = Outcome()
    base(lab)
    before = ids(lab)
    at, delay = rng.randint(1, 40 * _ADDS), rng.choice((0.0, 0.0, 0.001, 0.02))
    command = ["serve", "--index", FOLDER, "--port", "0", "--no-warm"]
    pid = lab.start(command, watch=FOLDER, at=at, delay=delay, name="serve")
    known, asked = _added(lab, pid)
    os.kill(pid, signal.SIGKILL if number % 2 else signal.SIGTERM)
    ended = lab.end(pid, command, limit=120, name="serve")
    outcome.landed = int(ended.code < 0)
    where = f"operation {at} and {delay * 1e3:g} ms, {len(known)} of {asked} acknowledged"
    for kind in ended.faults():
        if kind != "killed by itself" and not (kind == "hang" and not ended.hung):
            outcome.fault(kind, f"{where}: {ended.error[-600:]}")
    try:
        found = ids(lab)
    except UserError as error:
        outcome.fault("lost", f"{where}: {error}")
        return outcome
    if missing := {*before, *known} - set(found):
        outcome.fault("lost", f"{where}: {sorted(missing)} are not there")
    if len(found) > len(before) + asked:
        outcome.fault("half", f"{where}: {len(found)} passages")
    return outcome


def _added(lab: Lab, pid: int) -> tuple[list[str], int]:
    """The ids that the server has acknowledged, and how many passages it was sent."""
    end = time.monotonic() + 120
    while not (found := re.search(r"http://127.0.0.1:(\d+)", lab.output("serve", "err"))):
        if time.monotonic() > end or _ended(pid):
            return [], 0
        time.sleep(0.02)
    known: list[str] = []
    for number in range(1, _ADDS + 1):
        for _ in range(100):  # it says where it will be just before it is
            try:
                known += _ask(int(found[1]), {"passages": [f"Passage {number} of a client."]})
                break
            except ConnectionRefusedError:
                if _ended(pid):
                    return known, number - 1
                time.sleep(0.02)
            except (OSError, http.client.HTTPException, ValueError):
                return known, number
    return known, number


def _ask(port: int, body: Any) -> list[str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    try:
        connection.request("POST", "/add", json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    return json.loads(text)["ids"] if answer.status == 200 else []


def _ended(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
