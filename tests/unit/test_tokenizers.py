"""Tokenisers: Hugging Face's ids, special tokens, continuation; learning a vocabulary."""

from typing import Any

import pytest
import sentencepiece
import tokenizers as hf
import toy_tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qac_jax.data.form import form_of
from qac_jax.errors import UserError
from qac_jax.text import tokenizers


TEXTS = ["Stack arrays (row wise).", "Dr. Müller’s naïve café — 東京 …", "", "\u200b\t", "x" * 200]


@pytest.fixture(scope="module")
def shipped():
    return tokenizers.load()


def test_the_shipped_vocabulary_has_the_stated_form(shipped):
    assert shipped.vocab_size == 16_384
    ids = (shipped.pad_id, shipped.unk_id, shipped.cls_id, shipped.sep_id, shipped.mask_id)
    assert ids == (0, 1, 2, 3, 4) == shipped.special_ids
    assert shipped.model_type == "WordPiece" and shipped.splits_at_spaces
    lines = (tokenizers.ASSETS / tokenizers.SHIPPED / "vocab.txt").read_text().splitlines()
    assert lines == [shipped.token(i) for i in range(shipped.vocab_size)]
    assert shipped.encode("VERTICALLY") == shipped.encode("vertically")
    assert tokenizers.shipped() == [tokenizers.SHIPPED]


def test_what_is_saved_has_hugging_faces_ids(shipped, tmp_path):
    from transformers import AutoTokenizer

    shipped.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.mask_token_id == shipped.mask_id
    ours = shipped.encode_batch(TEXTS)
    assert ours == theirs(TEXTS, add_special_tokens=False).input_ids
    (tmp_path / "tokenizer.json").unlink()  # vocab.txt alone is enough
    assert tokenizers.load(str(tmp_path)).encode_batch(TEXTS) == ours


@settings(max_examples=300, deadline=None)
@example(["a\x0bb \x1cc", "x\x85y"])
@example(["[CLS] a[MASK]b [SEP]", "ΟΔΟΣ ός", "e\u0301 \u0301e", "가각 \u1100\u1161", "ﷺ ﬁ"])
@example(["long" * 30 + " " + "東京" * 90])
@given(st.lists(st.text(max_size=60), max_size=5))
def test_counts_are_lengths_and_parts_add_up(shipped, texts):
    counts = shipped.count(texts)
    assert counts == shipped.count(texts) == [len(ids) for ids in shipped.encode_batch(texts)]
    assert shipped.count([" ".join(texts)]) == [sum(counts)]


def test_unigrams_with_their_own_specials_and_no_padding_left(tmp_path):
    backend = toy_tokenizers.t5(toy_tokenizers.TEXTS * 10, 40)
    backend.enable_padding()
    backend.enable_truncation(3)
    t5 = tokenizers.load(str(toy_tokenizers.stored(tmp_path, backend, toy_tokenizers.T5_ROLES)))
    assert t5.model_type == "Unigram"
    assert (t5.pad_id, t5.eos_id, t5.unk_id) == (0, 1, 2)
    assert not t5.has("cls") and not t5.has("mask")
    with pytest.raises(UserError, match="has no 'mask' token"):
        _ = t5.mask_id
    ids, nothing = t5.encode_batch(["near the sea", ""])
    assert not nothing and t5.decode([*ids, 1]) == "near the sea"


def test_a_bare_sentencepiece_model(tmp_path):
    texts = ["the tide mill ground barley near the sea", "the miller stopped the mill"] * 50
    ids: dict[str, Any] = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    where: dict[str, Any] = {
        "sentence_iterator": iter(texts),
        "model_prefix": str(tmp_path / "spiece"),
    }
    sentencepiece.SentencePieceTrainer.train(**where, **ids, vocab_size=30, minloglevel=2)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')
    loaded = tokenizers.load(str(tmp_path))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    assert loaded.encode("the tide, stopped") == theirs.encode("the tide, stopped")
    assert (loaded.pad_id, loaded.eos_id, loaded.unk_id) == (0, 1, 2)


def test_special_ids_pairs_and_words_of_roberta(tmp_path):
    """<s> and </s> are [CLS] and [SEP], also where only the template says so; two between texts."""
    backend = toy_tokenizers.bpe(
        toy_tokenizers.SPECIALS, ["the tide mill ground barley\nnear the sea", "the miller's mills"]
    )
    backend.post_processor = hf.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    roberta = tokenizers.load(str(toy_tokenizers.stored(tmp_path, backend, {})))
    special = (roberta.cls_id, roberta.pad_id, roberta.sep_id, roberta.unk_id, roberta.mask_id)
    assert special == (0, 1, 2, 3, 4)
    assert form_of(roberta) == {"before": [0], "between": [2, 2], "after": [2], "pad": 1}
    text = "the tide mills\nthe tide"
    words: list[str] = []
    for place, piece in enumerate(roberta.encode(text)):
        if place == 0 or not roberta.continuation[piece]:
            words.append("")
        words[-1] += roberta.token(piece)
    assert [word.strip("Ġ▁Ċ") for word in words] == text.split()
    assert not roberta.continuation[list(roberta.special_ids)].any()
