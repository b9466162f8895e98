"""`qac export`: every form is loaded back, by us and by the library it is for."""

import re
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from toy_retrieval import save_encoder

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.evaluation import results
from qac_jax.evaluation.results import Result
from qac_jax.exporting.export import Export, _compare
from qac_jax.hub import huggingface, weights
from qac_jax.inference.encoder import Encoder
from qac_jax.pipeline.stage import execute


TEXTS = ["a river of stone", "lamp"]


@pytest.fixture(scope="module")
def dual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes: dict[str, Any] = {"query_length": 12, "passage_length": 30, "title": "separate"}
    return save_encoder(tmp_path_factory.mktemp("dual") / "encoder", **changes)


def export(out: Path, **settings: Any) -> artifacts.Artifact:
    return execute(Export(**settings), out)


def test_a_folder_that_is_an_artefact_and_a_model(dual: Path, tmp_path: Path) -> None:
    result = Result("own | run", {"ndcg@10": 0.5, "mrr@10": 0.25}, {}, 7)
    with artifacts.create(tmp_path / "metrics", kind="metrics") as out:
        results.store(out, [result], {"comparisons": []})
    figures = str(tmp_path / "metrics")
    said: dict[str, Any] = {"license": "mit", "datasets": ("owner/manuals",)}
    exported = export(tmp_path / "out", model=str(dual), name="shop", figures=figures, **said)
    assert exported.kind == huggingface.EXPORTED
    assert {"config.json", "modules.json", "README.md"} <= exported.files.keys()
    module, _ = huggingface.load(exported.path)
    given, _ = huggingface.load(dual)
    assert module == given, "how texts are read is kept: limits and titles"
    before, after = Encoder.load(dual), Encoder.load(exported.path)
    assert after.limits == before.limits == {"query": 12, "passage": 30}
    np.testing.assert_array_equal(after.encode(TEXTS), before.encode(TEXTS))
    card = (exported.path / "README.md").read_text()
    for line in ("# shop", "| own \\| run | 0.5000 | 0.2500 | 7 |"):
        assert line in re.sub(" +", " ", card)
    data: Any = huggingface_hub.ModelCard(card).data
    assert data.library_name == "sentence-transformers"
    assert (data.license, data.datasets) == ("mit", ["owner/manuals"])


def test_half_precision_halves_the_file(dual: Path, tmp_path: Path) -> None:
    exported = export(tmp_path / "out", model=str(dual), dtype="float16")
    size = exported.files["model.safetensors"]["size"]
    assert size < 0.52 * (dual / "model.safetensors").stat().st_size
    loaded = weights.read_folder(exported.path)
    assert {x.dtype for x in loaded.values()} == {np.dtype(np.float32)}
    with pytest.raises(UserError, match="float16 holds numbers up to 65504"):
        weights.halved(np.array([1e6], np.float32))


@pytest.mark.slow
def test_two_towers_and_the_bare_encoder(dual: Path, tmp_path: Path) -> None:
    two = save_encoder(tmp_path / "in", tied=False)
    exported = export(tmp_path / "two", model=str(two))
    assert exported.info["form"] == "two_towers"
    assert "query/modules.json" in exported.files and "passage/README.md" not in exported.files
    bare = export(tmp_path / "bare", model=str(dual), form="huggingface")
    assert bare.info["form"] == "Bert"
    # … and back: a BERT with a pooling is a dual encoder.
    again = export(tmp_path / "again", model=str(bare.path), pooling="mean")
    theirs = weights.read_folder(again.path)
    for name, tensor in weights.read_folder(dual).items():
        np.testing.assert_array_equal(theirs[name], tensor)


def test_what_differs_is_refused() -> None:
    for wrong, dtype in ((0.1, "float16"), (0.1, "float32"), (np.nan, "float16")):
        with pytest.raises(UserError, match=f"back from {dtype}, the exported model is another"):
            _compare({"a": np.zeros(2)}, {"a": np.array([0, wrong])}, dtype)


@pytest.mark.slow
def test_the_code_of_the_card_makes_our_vectors(dual: Path, tmp_path: Path) -> None:
    """What sentence-transformers makes of a folder is compared in tests/parity."""
    pytest.importorskip("sentence_transformers")
    exported = export(tmp_path / "out", model=str(dual), name=str(tmp_path / "out"))
    known: dict[str, Any] = {}
    card = (exported.path / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", card, re.S)
    for block in (blocks[0], blocks[2]):
        exec(block, known)
    encoder = Encoder.load(dual)
    text = encoder.passage_text({"title": "Lamps", "text": "A lamp burns oil."})
    np.testing.assert_allclose(known["vectors"], encoder.encode([text]), atol=1e-4)
