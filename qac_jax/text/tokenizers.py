"""Texts into token ids: tokenisers from a local Hugging Face folder, or the one we ship.

WordPiece (BERT), Unigram / SentencePiece (T5) and BPE all come through the `tokenizers` library.
Ids are made without special tokens; whoever builds an example adds them. Nothing is downloaded.
"""

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import qac_jax
from qac_jax import extras
from qac_jax.errors import UserError


ASSETS = Path(qac_jax.__file__).parent / "assets"
SHIPPED = "wordpiece-16k"

# White space as byte-level BPE writes it, a space first.
_BYTE_LEVEL_SPACES = ("Ġ", "Ċ", "ĉ", "č")


class Tokenizer:
    """Text to ids and back; batches are tokenised on all cores."""

    def __init__(self, backend: Any, special_tokens: dict[str, str], name: str):
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.name = name
        self.special_tokens = special_tokens
        self._specials = {role: backend.token_to_id(t) for role, t in special_tokens.items()}

    def __repr__(self) -> str:
        return f"Tokenizer({self.name}, {self.vocab_size} pieces)"

    @functools.cached_property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included: the rows an embedding needs."""
        ids = self.backend.get_vocab(with_added_tokens=True).values()
        if not ids or max(ids) >= _MOST_PIECES:
            found = f"pieces numbered up to {max(ids):,}" if ids else "no pieces"
            raise UserError(f"tokenizer {self.name} has {found}; copy its folder again")
        return 1 + max(ids)

    def check_fits(self, rows: int, model: str) -> None:
        """Raises UserError for a tokenizer with more pieces than the model has embedding rows."""
        if self.vocab_size > rows:
            raise UserError(
                f"the tokenizer {self.name} has {self.vocab_size} pieces and the {model} {rows} "
                "rows for them; give the tokenizer it was trained with"
            )

    @functools.cached_property
    def identity(self) -> str:
        """A hash of all that decides the ids."""
        return hashlib.sha256(self.backend.to_str().encode()).hexdigest()

    @functools.cached_property
    def model_type(self) -> str:
        """WordPiece, Unigram or BPE."""
        return json.loads(self.backend.to_str())["model"]["type"]

    def has(self, role: str) -> bool:
        """Whether there is such a special token ("cls", "mask", "eos"…)."""
        return self._specials.get(role) is not None

    def special(self, role: str) -> int:
        """The id of the special token of a role."""
        if not self.has(role):
            raise UserError(f"tokenizer {self.name} has no {role!r} token, which is needed here")
        return self._specials[role]

    pad_id = property(lambda self: self.special("pad"))
    unk_id = property(lambda self: self.special("unk"))
    cls_id = property(lambda self: self.special("cls"))
    sep_id = property(lambda self: self.special("sep"))
    mask_id = property(lambda self: self.special("mask"))
    eos_id = property(lambda self: self.special("eos"))

    @functools.cached_property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of all special tokens, added ones included, in ascending order."""
        added = self.backend.get_added_tokens_decoder()
        ids = {i for i, token in added.items() if token.special}
        return tuple(sorted(ids | {i for i in self._specials.values() if i is not None}))

    @functools.cached_property
    def continuation(self) -> np.ndarray:
        """A truth value for each id: does the piece go on with the word before it?"""
        spec = json.loads(self.backend.to_str())
        vocab = self.backend.get_vocab(with_added_tokens=True)
        table = np.zeros(self.vocab_size, bool)
        if self.model_type == "WordLevel":
            return table
        if prefix := spec["model"].get("continuing_subword_prefix"):
            table[[i for piece, i in vocab.items() if piece.startswith(prefix)]] = True
        else:
            around = json.dumps([spec["pre_tokenizer"], spec["decoder"]])
            marks = _BYTE_LEVEL_SPACES if '"ByteLevel"' in around else ("▁",)
            table[[i for piece, i in vocab.items() if not piece.startswith(marks)]] = True
            if table.all():
                raise UserError(f"tokenizer {self.name} does not mark where words begin")
        table[list(self.special_ids)] = False
        return table

    @functools.cached_property
    def splits_at_spaces(self) -> bool:
        """Whether words are tokenised one by one, so that lengths of parts add up."""
        spec = json.loads(self.backend.to_str())["pre_tokenizer"] or {}
        first = spec.get("pretokenizers", [spec])[0] or {}
        return first.get("type") in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")

    def encode(self, text: str) -> list[int]:
        """The ids of one text, without special tokens."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, on all cores."""
        encoded = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [e.ids for e in encoded]

    @functools.cached_property
    def count(self) -> Callable[[Sequence[str]], list[int]]:
        """How many tokens each text has, without special tokens."""

        def measure(texts: Sequence[str]) -> list[int]:
            encoded = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
            return [len(e) for e in encoded]

        spec = json.loads(self.backend.to_str())
        parts = [(spec[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer")]
        bert = parts == ["BertNormalizer", "BertPreTokenizer"] and self.model_type == "WordPiece"
        cleans = bert and spec["normalizer"]["clean_text"]
        return WordLengths(measure).count if cleans else measure

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The place of each token in the text, in characters."""
        return self.backend.encode(text, add_special_tokens=False).offsets

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; special tokens are left out."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=True)

    def token(self, index: int) -> str:
        """The piece with this id."""
        piece = self.backend.id_to_token(int(index))
        return piece if piece is not None else f"[id {index}]"

    def save(self, folder: str | Path) -> None:
        """Writes a folder that `load` and Hugging Face's AutoTokenizer read."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(self.backend.to_str(pretty=True), encoding="utf-8")
        config: dict[str, Any] = {f"{r}_token": t for r, t in self.special_tokens.items()}
        config["model_max_length"] = 512
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        # An MPNet's has other special tokens, which BertTokenizer would not put between two texts.
        if self.model_type == "WordPiece" and self.special_tokens.get("cls") in (None, "[CLS]"):
            config["tokenizer_class"] = "BertTokenizer"
            config["do_lower_case"] = bool(getattr(self.backend.normalizer, "lowercase", True))
            pieces = (self.backend.id_to_token(i) for i in range(self.vocab_size))
            (folder / "vocab.txt").write_text("".join(f"{p}\n" for p in pieces), encoding="utf-8")
        text = json.dumps(config, indent=1, ensure_ascii=False) + "\n"
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


@functools.lru_cache(maxsize=8)
def load(name: str = SHIPPED) -> Tokenizer:
    """A tokeniser by the name of one we ship, or from a folder in Hugging Face's layout."""
    folder = ASSETS / name if name in shipped() else Path(name)
    if not folder.is_dir():
        raise UserError(f"tokenizer {name!r} is neither a folder nor of {', '.join(shipped())}")
    backend = _backend(folder)
    return Tokenizer(backend, special_tokens(folder, backend), name)


def shipped() -> list[str]:
    """The names of the vocabularies that come with the package."""
    folders = (path.parent for path in ASSETS.glob("*/tokenizer.json"))
    return sorted(folder.name for folder in folders if not (folder / "config.json").exists())


# White space to Python, but removed by BERT's cleaning, so that it joins what it divided.
_JOINING = re.compile("[\x0b\x0c\x1c-\x1f\x85]")

# The most words that are remembered, and the most letters of each: about 50 MB.
_MOST_WORDS = 400_000
_LONGEST_WORD = 40


class WordLengths:
    """Counts tokens; asks `measure` for words it has not met."""

    def __init__(self, measure: Callable[[Sequence[str]], list[int]]):
        self._measure = measure
        self._known: dict[str, int] = {}

    def count(self, texts: Sequence[str]) -> list[int]:
        if any(map(_JOINING.search, texts)):
            return self._measure(texts)
        known = self._known
        split = [text.split() for text in texts]
        new = sorted({word for words in split for word in words if word not in known})
        known.update(zip(new, self._measure(new), strict=True))
        lengths = [sum(map(known.__getitem__, words)) for words in split]
        if len(known) > _MOST_WORDS:
            known.clear()
        elif new and max(map(len, new)) > _LONGEST_WORD:
            for word in new:
                if len(word) > _LONGEST_WORD:
                    del known[word]
        return lengths


# The role of each special token: its key in Hugging Face's config, and how it is usually spelt.
_SPELLINGS = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]",),
    "sep": ("[SEP]",),
    "mask": ("[MASK]", "<mask>"),
    "bos": ("<s>",),
    "eos": ("</s>",),
}
_OTHERS = ("merges.txt", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model")
_SETTINGS = "sentence_bert_config.json"
# Pieces that a tokenizer may have, and how much longer its normaliser may make a text.
_MOST_PIECES, _GROWTH = 1 << 24, 64
# A repeated group, a reference or a call in a pattern, with which matching may take exponential
# time; what is behind a backslash or in brackets is neither.
_REPEATED = re.compile(r"[)*+}][*{]|\)\+|\\[1-9gk]|[\[\]]")
_LITERAL = re.compile(r"\\[pP]\{[^}]*\}|\\[^1-9gk]")
_CLASS = re.compile(r"\[[^\[\]]*\]")


def _backend(folder: Path) -> Any:
    """The tokenizer of a folder: from tokenizer.json, or from what older folders have."""
    backend = _read_backend(folder)
    _refuse_costly(folder, backend)
    if lowercases(folder):
        from tokenizers import normalizers

        own = json.loads(backend.to_str())["normalizer"] or {}
        steps = own.get("normalizers", [own])
        if not any(step.get("type") == "Lowercase" or step.get("lowercase") for step in steps):
            inner = [backend.normalizer] if own else []
            backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *inner])
    return backend


def _refuse_costly(folder: Path, backend: Any) -> None:
    """Raises UserError for a tokenizer whose time or memory does not grow with the text alone."""
    steps = (backend.normalizer, backend.pre_tokenizer, backend.decoder)
    parts, growth = [json.loads(step.__getstate__()) for step in steps if step is not None], 1
    while parts:
        part = parts.pop()
        if isinstance(part, list | dict):
            parts += part if isinstance(part, list) else part.values()
        known = part if isinstance(part, dict) else {}
        growth *= max(1, len(known["content"])) if known.get("type") == "Replace" else 1
        costly = "makes texts many times longer" if growth > _GROWTH else ""
        if _repeats(str(known.get("Regex", ""))):
            costly = f"has the pattern {known['Regex'][:80]!r}, which repeats a group"
        if costly:
            raise UserError(f"{folder}: the tokenizer {costly}; take another one")


def _repeats(pattern: str) -> bool:
    plain, left = _LITERAL.sub("x", pattern), None
    while plain != left:  # classes may be nested
        plain, left = _CLASS.sub("x", plain), plain
    return bool(_REPEATED.search(plain))


def lowercases(folder: Path) -> bool:
    """Whether sentence-transformers' settings make all texts lower case, whatever the tokenizer."""
    file = folder / _SETTINGS
    return file.exists() and bool(_json(file).get("do_lower_case"))


def _json(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{file} is no JSON object ({error}); copy the folder again") from error


def _read_backend(folder: Path) -> Any:
    import tokenizers

    if (folder / "tokenizer.json").exists():
        try:
            return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"{folder}: tokenizer.json cannot be read ({error})") from error
    if (folder / "vocab.txt").exists():
        try:
            pieces = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise UserError(f"{folder}: vocab.txt is not UTF-8; copy it again") from error
        vocab = {piece.rstrip("\r"): i for i, piece in enumerate(pieces) if piece}
        return wordpiece(vocab, lowercase=config(folder).get("do_lower_case", True))
    if any((folder / name).exists() for name in _OTHERS):
        return _converted(folder)
    raise UserError(f"{folder} holds no tokenizer, such as tokenizer.json or vocab.txt")


def config(folder: Path) -> dict[str, Any]:
    """The settings in the config files, the special tokens' map included."""
    merged: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).exists():
            merged.update(_json(folder / name))
    return merged


def special_tokens_of(vocab: Iterable[str], stated: Mapping[str, Any]) -> dict[str, str]:
    """The special token of each role: as a config states it, else by its usual spelling."""
    pieces = set(vocab)
    roles = {}
    for role, spellings in _SPELLINGS.items():
        token = stated.get(f"{role}_token")
        token = token.get("content") if isinstance(token, dict) else token
        candidates = [token] if isinstance(token, str) else spellings
        if known := [piece for piece in candidates if piece in pieces]:
            roles[role] = known[0]
    return roles


def special_tokens(folder: Path, backend: Any) -> dict[str, str]:
    """The special token of each role in a folder's tokenizer."""
    roles = special_tokens_of(backend.get_vocab(with_added_tokens=True), config(folder))
    if "cls" in roles and "sep" in roles:
        return roles
    # RoBERTa's files do not always say that <s> and </s> have these roles; their template does.
    backend.no_padding()
    backend.no_truncation()
    frame = backend.encode("").tokens
    return {"cls": frame[0], "sep": frame[1], **roles} if len(frame) == 2 else roles


def wordpiece(vocab: Mapping[str, int], *, lowercase: bool = True) -> Any:
    """BERT's tokeniser over a vocabulary, or MPNet's, whose special tokens are a RoBERTa's."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    roles = special_tokens_of(vocab, {})
    unknown = roles.get("unk", "[UNK]")
    backend = tokenizers.Tokenizer(models.WordPiece(dict(vocab), unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens([*roles.values()])
    bert = "cls" in roles and "sep" in roles
    first, last = (roles["cls"], roles["sep"]) if bert else ("<s>", "</s>")
    if first in vocab and last in vocab:
        kind, between = (1, f"{last}:0") if bert else (0, f"{last}:0 {last}:0")
        backend.post_processor = processors.TemplateProcessing(
            single=f"{first}:0 $A:0 {last}:0",
            pair=f"{first}:0 $A:0 {between} $B:{kind} {last}:{kind}",
            special_tokens=[(first, vocab[first]), (last, vocab[last])],
        )
    return backend


def _converted(folder: Path) -> Any:
    """A byte-level BPE, or a SentencePiece model, as transformers reads it."""
    auto = extras.load("transformers", "papers", f"{folder} (no tokenizer.json)").AutoTokenizer
    try:
        return auto.from_pretrained(folder, local_files_only=True).backend_tokenizer
    except Exception as error:  # of many libraries
        raise UserError(
            f"{folder} holds a tokenizer that transformers does not read ({error}); put a "
            f'tokenizer_config.json beside it, such as {{"tokenizer_class": "T5Tokenizer"}}'
        ) from error


TITLES = ("none", "separate", "space")
# How an encoder may read them: `separate`, or that with token types of their own.
SEGMENTS = "segments"
# Or AugTriever's way on BEIR: title, the words " TEXT: ", text.
MARKED = "marked"


def text_of(tokenizer: Tokenizer, passage: Mapping[str, Any], title: str) -> str:
    """A passage with its title: none, before a separator (as text), a space, or a mark."""
    name = (passage.get("title") or "").strip()
    if title == "none" or not name:
        return passage["text"]
    if title == "space":
        return f"{name} {passage['text']}"
    if title == MARKED:
        return f"{name} TEXT: {passage['text']}"
    role = "sep" if tokenizer.has("sep") else "eos"
    tokenizer.special(role)  # or one sentence about what it has
    return f"{name}{tokenizer.special_tokens[role]}{passage['text']}"
