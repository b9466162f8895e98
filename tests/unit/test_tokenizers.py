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


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    """Unigrams in T5's layout, stored with padding and truncation."""
    backend = toy_tokenizers.t5(toy_tokenizers.TEXTS * 10, 40)
    spaces = [hf.pre_tokenizers.WhitespaceSplit(), hf.pre_tokenizers.Metaspace()]
    backend.pre_tokenizer = hf.pre_tokenizers.Sequence(spaces)
    backend.enable_padding()
    backend.enable_truncation(3)
    folder = tmp_path_factory.mktemp("t5")
    return tokenizers.load(str(toy_tokenizers.stored(folder, backend, toy_tokenizers.T5_ROLES)))


def test_the_shipped_vocabulary_has_the_stated_form(shipped):
    assert shipped.vocab_size == 16_384
    ids = (shipped.pad_id, shipped.unk_id, shipped.cls_id, shipped.sep_id, shipped.mask_id)
    assert ids == (0, 1, 2, 3, 4) == shipped.special_ids
    assert shipped.model_type == "WordPiece" and shipped.splits_at_spaces
    lines = (tokenizers.ASSETS / tokenizers.SHIPPED / "vocab.txt").read_text().splitlines()
    assert lines == [shipped.token(i) for i in range(shipped.vocab_size)]
    assert shipped.encode("VERTICALLY") == shipped.encode("vertically")
    assert tokenizers.shipped() == [tokenizers.SHIPPED]


def test_ids_equal_hugging_faces(shipped, tmp_path):
    from transformers import AutoTokenizer

    for folder in (tokenizers.ASSETS / tokenizers.SHIPPED, tmp_path / "saved"):
        shipped.save(tmp_path / "saved")
        theirs = AutoTokenizer.from_pretrained(folder)
        for text, ours in zip(TEXTS, shipped.encode_batch(TEXTS), strict=True):
            assert ours == theirs(text, add_special_tokens=False).input_ids == shipped.encode(text)
        pair = theirs("the mill", "stopped")
        ids = [2, *shipped.encode("the mill"), 3, *shipped.encode("stopped"), 3]
        assert pair.input_ids == ids
        assert pair.token_type_ids == [0] * ids.index(3) + [0] + [1] * (len(ids) - ids.index(3) - 1)
        assert theirs.mask_token_id == shipped.mask_id
    (tmp_path / "saved" / "tokenizer.json").unlink()  # vocab.txt alone is enough
    again = tokenizers.load(str(tmp_path / "saved"))
    assert again.encode_batch(TEXTS) == shipped.encode_batch(TEXTS)


@settings(max_examples=300, deadline=None)
@example(["a\x0bb \x1cc", "x\x85y"])
@example(["[CLS] a[MASK]b [SEP]", "ΟΔΟΣ ός", "e\u0301 \u0301e", "가각 \u1100\u1161", "ﷺ ﬁ"])
@example(["long" * 30 + " " + "東京" * 90])
@given(st.lists(st.text(max_size=60), max_size=5))
def test_counts_are_lengths_and_parts_add_up(shipped, texts):
    counts = shipped.count(texts)
    assert counts == shipped.count(texts) == [len(ids) for ids in shipped.encode_batch(texts)]
    assert shipped.count([" ".join(texts)]) == [sum(counts)]


def test_continuation_of_both_kinds(shipped, t5):
    ids = shipped.encode("unstackable zzzzqqqx")
    pieces = [shipped.token(i) for i in ids]
    assert [bool(shipped.continuation[i]) for i in ids] == [p.startswith("##") for p in pieces]
    assert not shipped.continuation[list(shipped.special_ids)].any()
    ids = set(range(t5.vocab_size)) - set(t5.special_ids)
    assert all(bool(t5.continuation[i]) != t5.token(i).startswith("▁") for i in ids)


def test_unigram_with_its_own_specials_and_no_padding_left(t5):
    assert t5.model_type == "Unigram" and t5.splits_at_spaces
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
