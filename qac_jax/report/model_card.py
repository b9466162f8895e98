"""A model card: the README.md of an exported model, with the front matter that hubs read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from qac_jax.evaluation.results import Result
from qac_jax.inference.loading_back import Difference
from qac_jax.report import tables
from qac_jax.report.tables import number


# What the folder is -> (library, task at the hub, description, lines of Python that load it).
_FORMS = {
    "sentence_transformers": (
        "sentence-transformers",
        "sentence-similarity",
        "A dual encoder that makes a vector of a question or a passage; their {similarity} is "
        "their relevance.",
        "from sentence_transformers import SentenceTransformer\n"
        'model = SentenceTransformer("{place}")\n'
        'scores = model.similarity(model.encode_query("a question"), '
        'model.encode_document(["a passage"]))',
    ),
    "two_towers": (
        "sentence-transformers",
        "sentence-similarity",
        "A dual encoder with a tower for questions and one for passages; the {similarity} of "
        "their vectors is the relevance.",
        "from sentence_transformers import SentenceTransformer\n"
        'model = SentenceTransformer("{place}")\n'
        'scores = model.similarity(model.encode_query("a question"), '
        'model.encode_document(["a passage"]))',
    ),
    "dpr": (
        "transformers",
        "feature-extraction",
        "A DPR: one encoder for questions, one for passages; the dot product of their vectors "
        "is the relevance.",
        "from transformers import DPRContextEncoder, DPRQuestionEncoder\n"
        'queries = DPRQuestionEncoder.from_pretrained("{place}/query")\n'
        'passages = DPRContextEncoder.from_pretrained("{place}/passage")',
    ),
    "encoder": (
        "transformers",
        "feature-extraction",
        "An encoder of texts, to be fine-tuned.",
        "from transformers import AutoModel, AutoTokenizer\n"
        'tokenizer = AutoTokenizer.from_pretrained("{place}")\n'
        'model = AutoModel.from_pretrained("{place}")',
    ),
    "CrossEncoder": (
        "transformers",
        "text-ranking",
        "A cross-encoder: it reads a question and a passage together and scores their relevance.",
        "from transformers import AutoModelForSequenceClassification, AutoTokenizer\n"
        'tokenizer = AutoTokenizer.from_pretrained("{place}")\n'
        'model = AutoModelForSequenceClassification.from_pretrained("{place}")',
    ),
    "T5": (
        "transformers",
        "text-generation",
        "A T5: it reads a text and writes another, such as a question that the text answers.",
        "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer\n"
        'tokenizer = AutoTokenizer.from_pretrained("{place}")\n'
        'model = AutoModelForSeq2SeqLM.from_pretrained("{place}")',
    ),
}
_OURS = 'from qac_jax import Retriever\n\nvectors = Retriever.load("{place}").encode(["a passage"])'


@dataclasses.dataclass(frozen=True)
class Card:
    """What the owner of a model writes about it."""

    name: str
    license: str = ""
    data: str = ""
    recipe: str = ""
    language: str = ""


def text(
    card: Card,
    form: str,
    facts: Mapping[str, Any],
    training: Mapping[str, Any],
    figures: Sequence[Result],
    differences: Sequence[Difference],
    dtype: str,
) -> str:
    """The whole card. `form` is a key of _FORMS; facts and training become tables."""
    library, task, what, code = _FORMS[form]
    place = card.name
    parts = [
        _front_matter(card, library, task),
        f"# {card.name}",
        what.format(similarity=facts.get("similarity", "dot product")),
        tables.markdown(("what", "value"), list(facts.items())),
        f"## Use\n```python\n{code.format(place=place)}\n```",
    ]
    if form in ("sentence_transformers", "two_towers", "dpr"):
        parts.append(f"or without PyTorch:\n```python\n{_OURS.format(place=place)}\n```")
    recipe = [("recipe", card.recipe)] if card.recipe else []
    if training or recipe:
        parts.append(
            "## Training\n" + tables.markdown(("what", "value"), [*recipe, *training.items()])
        )
    if card.data:
        parts.append(f"## Data\n{card.data}")
    if figures:
        parts.append("## Figures\n" + _figures(figures))
    parts.append("## Checked\n" + _checked(differences, dtype))
    if card.license:
        parts.append(f"## Licence\n{card.license}")
    return "\n\n".join(parts) + "\n"


def _front_matter(card: Card, library: str, task: str) -> str:
    # JSON strings are YAML strings, whatever stands in them.
    lines = [f"library_name: {library}", f"pipeline_tag: {task}", "tags: [retrieval, qac_jax]"]
    for name in ("license", "language"):
        if value := getattr(card, name):
            lines.append(f"{name}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(["---", *lines, "---"])


def _figures(results: Sequence[Result]) -> str:
    measures = list(dict.fromkeys(m for result in results for m in result.mean))
    rows = [
        [result.name, *(number(result.mean.get(m)) for m in measures), result.queries]
        for result in results
    ]
    return tables.markdown(["", *measures, "queries"], rows)


def _checked(differences: Sequence[Difference], dtype: str) -> str:
    rows = [(d.by, f"{d.greatest:.2g}", f"{d.largest:.3g}") for d in differences]
    lead = f"Written in {dtype}, loaded back and compared with the trained model on a few texts:"
    return f"{lead}\n\n" + tables.markdown(
        ("loaded by", "greatest difference", "largest value"), rows
    )
