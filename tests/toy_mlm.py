"""Small examples artefacts: a made-up language in which every word says what comes next."""

import json
import sys
from pathlib import Path

import numpy as np

from qac_jax import artifacts
from qac_jax.data import shards
from qac_jax.data.kind import Stored
from qac_jax.text import tokenizers


SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
WORDS = [f"word{i}" for i in range(24)] + ["##s", "##ed", "##ing"]


def write_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    """A WordPiece tokeniser in Hugging Face's layout."""
    vocab = {piece: i for i, piece in enumerate([*SPECIALS.values(), *WORDS])}
    folder.mkdir(parents=True)
    tokenizers.wordpiece(vocab).save(str(folder / "tokenizer.json"))
    config = {f"{role}_token": token for role, token in SPECIALS.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizers.load(str(folder))


def write_mlm(folder: Path, count: int = 64, seed: int = 0) -> None:
    """Token examples for masked language modelling, lengths 6 to 20."""
    rng = np.random.default_rng(seed)
    with artifacts.create(folder, kind="examples", stage="tokenize", key="toy") as out:
        tokenizer = write_tokenizer(Path(out.path) / "tokenizer")
        out.adopt("tokenizer")
        first = len(SPECIALS)
        records = []
        for _ in range(count):
            start, step = rng.integers(24), rng.integers(1, 4)
            length = int(rng.integers(6, 21))
            records.append({"passage": first + (start + step * np.arange(length)) % 24})
        schema = shards.schema_of(tokenizer.vocab_size, Stored(("passage",)))
        name = shards.shard_name(0, 1)
        shards.write_shard(out.part(name), schema, records)
        out.keep(name)
        out.count = count
        out.info.update(
            task="mlm",
            schema=schema,
            form={"before": [tokenizer.cls_id], "after": [tokenizer.sep_id], "pad": 0},
            vocab_size=tokenizer.vocab_size,
            tokenizer="toy",
            shards=[count],
            settings={},
        )


if __name__ == "__main__":
    write_mlm(Path(sys.argv[1]), int(sys.argv[2]))
