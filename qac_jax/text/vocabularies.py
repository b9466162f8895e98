"""Learning a lower-cased WordPiece vocabulary from texts, the same one every time.

The merges come from the `tokenizers` library. Its trainer numbers the letters in the order of a
hash table and breaks ties by these numbers, so two runs differ; here all letters are numbered
beforehand, as if they were special tokens, and what is left to do has one answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from qac_jax.errors import UserError
from qac_jax.text.backends import special_tokens_of, wordpiece
from qac_jax.text.tokenizers import Tokenizer


SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

_LETTERS = 1000
# Longer words are identifiers and data; the tokeniser itself gives up at 100 letters.
_LONGEST_WORD = 100


def learn_wordpiece(
    texts: Callable[[], Iterable[str]], size: int, *, min_frequency: int = 2
) -> Tokenizer:
    """A vocabulary of exactly `size` pieces, special tokens included.

    `texts` is called twice: once to count letters, once to learn.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers, trainers

    normalizer = wordpiece({"[UNK]": 0}).normalizer
    letters: Counter[str] = Counter()
    for text in texts():
        letters.update(normalizer.normalize_str(text))
    alphabet = _alphabet(letters)
    base = [*SPECIALS, *alphabet, *(f"##{letter}" for letter in alphabet)]
    if size <= len(base):
        raise UserError(
            f"a vocabulary of {size} pieces is too small for {len(alphabet)} letters; "
            f"expected more than {len(base)}"
        )
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        special_tokens=base,
        show_progress=False,
        continuing_subword_prefix="##",
    )
    foreign = re.compile(f"[^{re.escape(''.join(alphabet))}\\s]|\\S{{{_LONGEST_WORD + 1},}}")
    backend.train_from_iterator(_clean(texts(), normalizer, foreign), trainer)
    vocab = backend.get_vocab(with_added_tokens=False)
    if len(vocab) < size:
        raise UserError(
            f"the corpus gives only {len(vocab)} pieces, fewer than the {size} wanted; "
            f"ask for fewer or give more text"
        )
    return Tokenizer(wordpiece(vocab), special_tokens_of(vocab, {}), f"wordpiece-{size}")


def _alphabet(letters: Counter[str]) -> list[str]:
    """The most frequent letters, ties by their code points; in the order of code points."""
    kinds = [(-count, letter) for letter, count in letters.items() if not letter.isspace()]
    return sorted(letter for _, letter in sorted(kinds)[:_LETTERS])


def _clean(texts: Iterable[str], normalizer: object, foreign: re.Pattern[str]) -> Iterator[str]:
    """Normalised text without letters outside the alphabet."""
    normalize: Callable[[str], str] = normalizer.normalize_str  # type: ignore[attr-defined]
    for text in texts:
        yield foreign.sub(" ", normalize(text))
