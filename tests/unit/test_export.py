"""`qac export`: every form is loaded back, by us and by the library it is for."""

import os
import re
from pathlib import Path
from typing import Any

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_retrieval import save_encoder

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.evaluation import results
from qac_jax.evaluation.results import Result
from qac_jax.hub import huggingface, weights
from qac_jax.inference import loading_back
from qac_jax.inference.encoder import Encoder
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.encoders import CrossEncoder, DualEncoder
from qac_jax.models.t5 import T5, T5Config
from qac_jax.pipeline.stage import execute
from qac_jax.stages.export import Export
from qac_jax.text import tokenizers


TEXTS = ["a river of stone", "lamp"]


@pytest.fixture(scope="module")
def dual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes: dict[str, Any] = {"query_length": 12, "passage_length": 30, "title": "separate"}
    return save_encoder(tmp_path_factory.mktemp("dual") / "encoder", **changes)


def export(out: Path, **settings: Any) -> artifacts.Artifact:
    return execute(Export(**settings), out)


def test_a_folder_that_is_an_artefact_and_a_model(dual: Path, tmp_path: Path) -> None:
    exported = export(tmp_path / "out", model=str(dual), license="mit", language="en")
    assert exported.kind == huggingface.EXPORTED
    assert {"config.json", "modules.json", "README.md"} <= exported.files.keys()
    assert exported.info["differences"] == {"qac_jax": 0.0}
    assert exported.info["largest_values"]["qac_jax"] > 0
    module, _ = huggingface.load(exported.path)
    given, _ = huggingface.load(dual)
    assert module == given, "how texts are read is kept: limits and titles"
    before, after = Encoder.load(dual), Encoder.load(exported.path)
    assert after.limits == before.limits == {"query": 12, "passage": 30}
    np.testing.assert_array_equal(after.encode(TEXTS), before.encode(TEXTS))
    card = (exported.path / "README.md").read_text()
    assert "library_name: sentence-transformers\n" in card
    assert "license: mit" in card and "language: en" in card


def test_half_precision_halves_the_file(dual: Path, tmp_path: Path) -> None:
    exported = export(tmp_path / "out", model=str(dual), dtype="float16")
    modes = {os.stat(exported.path / f).st_mode for f in ("model.safetensors", "config.json")}
    assert len(modes) == 1  # whoever may read one may read the other
    size = exported.files["model.safetensors"]["size"]
    assert size < 0.52 * (dual / "model.safetensors").stat().st_size
    assert 0 < exported.info["differences"]["qac_jax"] < 0.02
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


def test_refusals(dual: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with artifacts.create(other, kind="passages") as writer, writer.open("x") as file:
        file.write("x")
    with pytest.raises(UserError, match="is of kind 'passages'"):
        export(tmp_path / "c", model=str(other))
    with pytest.raises(UserError, match="keep --dtype float32"):
        loading_back.check(loading_back.Difference("qac_jax", 0.5, 1.0), "float16")
    with pytest.raises(UserError, match="differs by up to nan"):
        loading_back.check(loading_back.Difference("qac_jax", float("nan"), 1.0), "float32")


def test_figures_and_data_on_the_card(dual: Path, tmp_path: Path) -> None:
    result = Result("own | run", {"ndcg@10": 0.5, "mrr@10": 0.25}, {}, 7)
    with artifacts.create(tmp_path / "metrics", kind="metrics") as out:
        results.store(out, [result], {"comparisons": []})
    exported = export(
        tmp_path / "out",
        model=str(dual),
        figures=str(tmp_path / "metrics"),
        name="shop-search",
        base_model="owner/small",
        datasets=("owner/manuals",),
    )
    card = (exported.path / "README.md").read_text()
    for line in ("# shop-search", "| own \\| run | 0.5000 | 0.2500 | 7 |"):
        assert line in card
    data: Any = huggingface_hub.ModelCard(card).data
    assert (data.base_model, data.datasets) == ("owner/small", ["owner/manuals"])
    figures = [(r.metric_type, r.metric_value, r.dataset_type) for r in data.eval_results]
    assert figures == [("ndcg@10", 0.5, "own-run"), ("mrr@10", 0.25, "own-run")]
    # The code that joins titles and texts does it as the encoder does.
    known: dict[str, Any] = {}
    exec(re.findall(r"def passage.*?\n\n", card, re.S)[0], known)
    encoder = Encoder.load(dual)
    for title in ("Lamps", ""):
        record = {"title": title, "text": "A lamp burns oil."}
        assert known["passage"](**record) == encoder.passage_text(record)


@pytest.mark.slow
def test_the_code_of_the_card_makes_our_vectors(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    made = save_encoder(tmp_path / "in", pooling="cls", normalize=False, title="separate")
    place = str(tmp_path / "out")
    card = (export(Path(place), model=str(made), name=place).path / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", card, re.S)
    known: dict[str, Any] = {}
    for block in (blocks[0], blocks[2]):
        exec(block, known)
    encoder = Encoder.load(made)
    text = encoder.passage_text({"title": "Lamps", "text": "A lamp burns oil."})
    np.testing.assert_allclose(known["vectors"], encoder.encode([text]), atol=1e-4)


def saved(folder: Path, module: Any) -> Path:
    ids, lengths = jnp.zeros((1, 4), jnp.int32), jnp.full(1, 4, jnp.int32)
    inputs = (ids, lengths, ids) if isinstance(module, T5) else (ids, lengths)
    variables = jax.jit(module.init)(jax.random.key(0), *inputs)
    return huggingface.save(
        folder, module, variables, tokenizer=tokenizers.ASSETS / tokenizers.SHIPPED
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "settings"),
    [
        ("mean", {}),
        ("mean", {"dtype": "float16"}),
        ("cls", {}),
        ("two", {}),
        ("prompts", {}),
        ("cross", {}),
        ("t5", {}),
        ("bert", {}),
    ],
    ids=str,
)
def test_other_libraries_agree(made: str, settings: dict, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sentence_transformers")
    place = tmp_path / "in"
    bert = BertConfig(tokenizers.load().vocab_size, 16, 1, 2, 24, 64)
    if made == "cross":
        saved(place, CrossEncoder(bert.with_parts("pooler"), labels=2))
    elif made == "t5":
        saved(place, T5(T5Config(bert.vocab_size, 16, 8, 24, 1, 1, 2)))
    elif made == "bert":
        saved(place, Bert(bert))
    else:
        changes: dict[str, dict[str, Any]] = {
            "mean": {},
            "cls": {"pooling": "cls", "normalize": False, "projection": 8},
            "two": {"tied": False},
            "prompts": {"query_prompt": "query: ", "passage_prompt": "passage: ", "scale": 20.0},
        }
        save_encoder(place, **changes[made])
    folder = export(tmp_path / "out", model=str(place), **settings).path
    module: Any
    module, variables = huggingface.load(place)
    bound = 2e-2 if settings.get("dtype") else 1e-4
    if isinstance(module, DualEncoder):
        encoder = Encoder.load(place)
        for side in ("query", "passage"):
            expected = encoder.encode(LONGER, side)
            if made == "prompts":  # they do not have the scale
                expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
            np.testing.assert_allclose(
                _by_sentence_transformers(folder, side), expected, atol=bound
            )
        return
    theirs, ids, lengths, types = _by_transformers(folder, module)
    own = {"cross": (types,), "t5": (ids[:, :8],), "bert": ()}[made]
    ours = jax.jit(module.apply)(variables, ids, lengths, *own)
    ours = np.asarray(ours.last if made == "bert" else ours)
    if made == "bert":
        real = np.arange(ids.shape[1]) < lengths[:, None]
        ours, theirs = (np.where(real[..., None], x, 0) for x in (ours, theirs))
    np.testing.assert_allclose(ours, theirs, atol=bound * max(np.abs(ours).max(), 1.0))


LONGER = [*loading_back.TEXTS, "the oxygen escapes, the hydrogen helps to bind carbon. " * 8]


def _by_sentence_transformers(folder: Any, side: str) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    theirs: Any = SentenceTransformer(os.fspath(folder), device="cpu")
    encode = theirs.encode_query if side == "query" else theirs.encode_document
    return encode(LONGER, show_progress_bar=False)


def _by_transformers(folder: Any, module: Any) -> tuple[np.ndarray, ...]:
    """Their outputs, and the ids, lengths and token types that they read with their tokenizer."""
    import torch
    import transformers

    cross = isinstance(module, CrossEncoder)
    read = transformers.AutoTokenizer.from_pretrained(os.fspath(folder))
    texts = [list(loading_back.TEXTS)] * (1 + cross)
    batch = read(*texts, padding=True, return_tensors="pt")
    batch.setdefault("token_type_ids", torch.zeros_like(batch["input_ids"]))
    ids, types = batch["input_ids"], batch["token_type_ids"]
    auto: Any = transformers.AutoModel
    if cross:
        auto = transformers.AutoModelForSequenceClassification
    given = {"input_ids": ids, "attention_mask": batch["attention_mask"]}
    if isinstance(module, T5):
        auto, given["decoder_input_ids"] = transformers.AutoModelForSeq2SeqLM, ids[:, :8]
    else:
        given["token_type_ids"] = types
    with torch.no_grad():
        outputs = auto.from_pretrained(os.fspath(folder), dtype=torch.float32).eval()(**given)
    found = outputs.last_hidden_state if isinstance(module, Bert) else outputs.logits
    lengths = batch["attention_mask"].sum(1)
    return found.numpy(), *(x.numpy().astype(np.int32) for x in (ids, lengths, types))
