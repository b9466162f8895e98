"""The loader's backends, remainders, errors."""

import json
import multiprocessing
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from toy_examples import MemoryExamples

from qac_jax.data.loader import Loader
from qac_jax.errors import UserError


FORM = {"before": [1], "between": [2], "after": [2], "pad": 0}


def memory(count: int = 50, documents: Sequence[int] | None = None, **info: Any) -> MemoryExamples:
    """Passage i holds only the number 10 + i, so that rows can be told apart."""
    records = [
        {
            "passage": np.full(3 + i % 9, 10 + i, np.uint16),
            "contexts": [np.array([10 + i, 500 + k], np.uint16) for k in range(3)],
        }
        for i in range(count)
    ]
    schema = {"passage": "uint16", "contexts": "uint16", "contexts_lengths": "int32"}
    told = {"task": "passage_query", "schema": schema, "form": FORM, **info}
    return MemoryExamples(records, told, documents)


def numbers(batch: dict[str, np.ndarray]) -> list[int]:
    return (batch["passage"][:, 1] - 10).tolist()


LENGTHS = {"passage": 8, "context": 5}


def test_threads_and_processes_give_the_same_batches() -> None:
    def batches(start: int = 0, **ahead: Any) -> list[bytes]:
        with Loader(memory(40), batch_size=8, lengths=LENGTHS, epochs=2, **ahead) as loader:
            loader.restore({**loader.state(), "step": start})
            return [b"".join(batch[n].tobytes() for n in sorted(batch)) for batch in loader]

    at_once = batches(prefetch=0)
    assert len(at_once) == 10
    assert batches(prefetch=3) == at_once
    assert batches(workers=2, prefetch=1) == at_once
    assert batches(start=3, workers=2) == at_once[3:]
    # Closing early ends the workers; it goes on afterwards.
    loader = Loader(memory(40), batch_size=8, lengths=LENGTHS, workers=2)
    expected = [next(loader)["passage"].tobytes() for _ in range(2)]
    loader.close()
    assert not multiprocessing.active_children()
    again = Loader(memory(40), batch_size=8, lengths=LENGTHS, prefetch=0)
    assert [next(again)["passage"].tobytes() for _ in range(2)] == expected
    assert next(loader)["passage"].tobytes() == next(again)["passage"].tobytes()
    loader.close()


class Broken(dict[str, Any]):
    """A record that fails when it is used: with our error, or like a bug."""

    def __getitem__(self, name: str) -> Any:
        raise self.get("error", ValueError)("number 17 is bad")


@pytest.mark.parametrize(("workers", "error"), [(0, ZeroDivisionError), (1, UserError)])
def test_errors_reach_the_consumer(workers: int, error: type[Exception]) -> None:
    whole = memory(40)
    records = list(whole.read(np.arange(40)))
    records[17] = Broken(error=error)
    source = MemoryExamples(records, whole.info)
    with Loader(source, batch_size=8, shuffle=False, workers=workers) as loader:
        with pytest.raises(error, match="number 17 is bad"):
            for _ in range(3):
                next(loader)


def test_a_killed_worker_is_told() -> None:
    with Loader(memory(4096), batch_size=512, lengths=LENGTHS, workers=1, prefetch=1) as loader:
        next(loader)
        (child,) = multiprocessing.active_children()
        child.kill()
        with pytest.raises(RuntimeError, match="a loader process ended before its time"):
            for _ in range(20):
                next(loader)
    assert not multiprocessing.active_children()


def test_state_is_small_json_and_belongs_to_its_data() -> None:
    def made(count: int = 50, **changes: Any) -> Loader:
        return Loader(memory(count), **{"batch_size": 8, "lengths": LENGTHS, **changes})

    loader = made()
    next(loader)
    state = loader.state()
    assert len(json.dumps(state)) < 200 and state["step"] == 1
    for other in (
        *(made(49), made(batch_size=4), made(lengths={**LENGTHS, "passage": 9})),
        *(made(seed=1), made(settings={"queries": 2})),
    ):
        with pytest.raises(UserError, match="belongs to other data or settings"):
            other.restore(state)
    loader.close()


def test_what_cannot_be_loaded() -> None:
    source: Any
    given: Any
    for source, given, message in (
        (memory(3), {}, "larger than the number of examples"),
        (memory(), {"host": (0, 3)}, "shared by 3 hosts"),
        (memory(4, [0, 0, 1, 1]), {"separate_documents": True}, r"number of documents \(2\)"),
        (memory(), {"kind": "two_spans"}, "hold no 'spans'"),
    ):
        with pytest.raises(UserError, match=message):
            Loader(source, batch_size=4, **given)
