"""AugQ's published file and The Pile, in tiny copies of their exact layouts."""

import json
from pathlib import Path
from typing import Any

from qac_jax.formats.records import Records
from qac_jax.pipeline import stage
from qac_jax.queries.filtering import Filter
from qac_jax.stages.generate import Generate
from qac_jax.stages.prepare import Prepare
from qac_jax.text.passages import Cutting


# memray/AugTriever-AugQ-CC: id, text, title, meta, outputs, which may be absent.
AUGQ: list[dict[str, Any]] = [
    {
        "id": "a1",
        "text": "Copper conducts heat.\nIt is soft.",
        "title": "Copper",
        "meta": {"pile_set_name": "Pile-CC"},
        "outputs": {
            "T03B-topic": "copper",
            "D2Q-t2q": "what does copper conduct",
            "D2Q-a2t": "Copper",
            "D2Q-r2t": None,
        },
    }
]


def lines(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def prepared(folder: Path, documents: str, **settings: Any) -> Any:
    made = Prepare(documents=documents, shards=1, cutting=Cutting(cut="none"), **settings)
    return stage.execute(made, folder / "passages")


def imported(folder: Path, queries: str, origin: str) -> dict[str, dict[str, list[str]]]:
    """Passage -> origin -> texts."""
    made = stage.execute(
        Generate(
            passages=str(folder / "passages"),
            imported=queries,
            origin=origin,
            filter=Filter(drop_repeats=False),
        ),
        folder / "contexts",
    )
    found: dict[str, dict[str, list[str]]] = {}
    for record in Records(made):
        of = found.setdefault(record["_id"], {})
        for context in record["contexts"]:
            of.setdefault(context["origin"], []).append(context["text"])
    return found


def test_augq(tmp_path: Path) -> None:
    path = lines(tmp_path / "augq.jsonl", AUGQ)
    passages = list(Records(prepared(tmp_path, path, format="jsonl")))
    assert [p["text"] for p in passages] == [record["text"] for record in AUGQ]
    (first,) = imported(tmp_path, path, "tqgen_").values()
    assert first == {
        "tqgen_topic": ["copper"],
        "qgen_d2q": ["what does copper conduct"],
        "D2Q-a2t": ["Copper"],
    }
