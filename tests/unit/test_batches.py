"""What engines of data call: columns are added that `qac embed` and the models' own calls give."""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_generation
import toy_retrieval as toy

import qac_jax
from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.inference import generator
from qac_jax.inference.reranker import Reranker
from qac_jax.inference.settings import RerankerOptions
from qac_jax.models.decoding.settings import Decoding
from qac_jax.pipeline.stage import execute
from qac_jax.retrieval.vectors import Vectors
from qac_jax.stages.embed import Embed


PAGE = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
CODE = dict(re.findall(r"^```python (\w+)\n(.*?)^```$", PAGE, re.M | re.S))
ROWS = [
    {"_id": f"p{i}", "title": f"Stone {i % 3}", "text": "copper lamp river " * (1 + i % 4)}
    for i in range(11)
]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.save_encoder(tmp_path_factory.mktemp("batches") / "encoder")


@pytest.fixture(scope="module")
def embedded(encoder: Path) -> np.ndarray:
    texts = encoder.parent / "passages.jsonl"
    texts.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    out = encoder.parent / "vectors"
    execute(Embed(encoder=str(encoder), passages=str(texts)), out)
    return np.asarray(Vectors.of(artifacts.load(out)).read(0, len(ROWS)))


def test_batches_of_any_size_get_the_vectors_of_embed(encoder: Path, embedded: np.ndarray) -> None:
    model = qac_jax.Encoder(str(encoder), into="v")
    for size in (4, 11):
        made = []
        for start in range(0, len(ROWS), size):
            batch = {name: np.array(each[start : start + size]) for name, each in COLUMNS.items()}
            answer = model(batch)
            assert list(answer) == [*batch, "v"] and answer["v"].dtype == np.float32
            made.append(answer["v"])
        np.testing.assert_allclose(np.concatenate(made), embedded, atol=1e-6)
    asked = qac_jax.Encoder(str(encoder), side="query")
    np.testing.assert_array_equal(
        asked(COLUMNS)["vector"], asked.encoder.encode(COLUMNS["text"], "query")
    )


def test_generated_queries_are_those_of_the_generator_whatever_the_batches(tmp_path: Path) -> None:
    folder = str(toy_generation.save_generator(tmp_path / "t5"))
    brick = qac_jax.Generator(folder, prefix="ask: ", seed=3, samples=2, max_tokens=6)
    direct = generator.Generator.load(folder, Decoding(samples=2, max_tokens=6), seed=3)
    asked = [generator.Request(row["_id"], row["text"], "ask: ") for row in ROWS]
    expected = [[one.text for one in each] for each in direct.generate(asked)]
    assert brick(COLUMNS)["queries"] == expected
    assert brick({n: each[5:] for n, each in COLUMNS.items()})["queries"] == expected[5:]


def test_pairs_get_the_rerankers_log_odds(tmp_path: Path) -> None:
    folder = toy.save_cross_encoder(tmp_path / "cross")
    pairs = {"query": [f"stone {i}" for i in range(11)], "text": COLUMNS["text"]}
    answer = qac_jax.Reranker(str(folder), max_length=64)(pairs)
    expected = Reranker.load(folder, RerankerOptions(max_length=64)).score(
        pairs["query"], pairs["text"]
    )
    np.testing.assert_array_equal(answer["score"], expected)


def test_a_wrong_batch_is_a_sentence(encoder: Path) -> None:
    model = qac_jax.Encoder(str(encoder))
    with pytest.raises(UserError, match="no column 'text'; did you mean 'texts'"):
        model({"texts": ["a"]})
    with pytest.raises(UserError, match="column 'text' holds None; expected texts"):
        model({"text": ["a", None]})


@contextlib.contextmanager
def _a_cluster(name: str) -> Iterator[None]:
    if name != "ray":
        yield
        return
    import ray

    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80_000_000)
    try:
        yield
    finally:
        ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the engines
@pytest.mark.parametrize("name", CODE)
def test_an_engine_of_data_gets_the_vectors_of_embed(
    name: str, encoder: Path, embedded: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip({"ray": "ray.data"}.get(name, name), exc_type=ImportError)
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    Path("passages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    code = CODE[name].replace("shipped:minilm", str(encoder))
    assert code != CODE[name]
    scope: dict[str, Any] = {"__name__": "of_a_user"}
    with _a_cluster(name):
        exec(code, scope)
    table = parquet.read_table("vectors").to_pylist()
    made = {row["_id"]: row["vector"] for row in table}
    assert list(made) == COLUMNS["_id"]
    np.testing.assert_allclose(np.array(list(made.values())), embedded, atol=1e-6)
