"""A model card: the README.md of an exported model, with the front matter that hubs read."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from qac_jax.evaluation import measure_names
from qac_jax.evaluation.results import Result
from qac_jax.inference.loading_back import Difference
from qac_jax.report import tables
from qac_jax.report.tables import number
from qac_jax.text.tokenizers import Tokenizer


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
    "PointerGenerator": (
        "qac_jax",
        "text-generation",
        "A pointer-generator: it reads a text and writes another, such as a question that the text "
        "answers, and may copy words of what it read. transformers does not load it.",
        "from qac_jax.inference.generator import Generator, Request\n"
        "from qac_jax.models.decoding.settings import Decoding\n"
        'decoding = Decoding(max_tokens=32, method="sample", top_p=0.8)\n'
        'generator = Generator.load("{place}", decoding)\n'
        'generator.generate([Request("1", "text2query: A lamp burns oil and gives light.")])',
    ),
}
# Texts to try a model with, by its task at the hub.
_TRIED = {
    "sentence-similarity": (
        "how do lamps work?",
        "A lamp burns oil and gives light.",
        "Granite is a hard stone.",
    ),
    "text-generation": ("A lamp burns oil and gives light.",),
    "": ("how do lamps work?", "A lamp burns oil and gives light."),
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
    base_model: str = ""
    datasets: Sequence[str] = ()
    widget: Sequence[str] = ()
    sources: Sequence[str] = ()  # data sets that it read by name
    title: str = ""  # how a passage's title joins its text (text/titles.py)
    separator: str = ""


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
        _front_matter(card, library, task, figures),
        f"# {card.name}",
        what.format(similarity=facts.get("similarity", "dot product")),
        tables.markdown(("what", "value"), list(facts.items())),
        f"## Use\n```python\n{code.format(place=place)}\n```",
    ]
    if form in ("sentence_transformers", "two_towers", "dpr"):
        parts.append(f"or without PyTorch:\n```python\n{_OURS.format(place=place)}\n```")
        parts.append(_titles(card, form))
    recipe = [("recipe", card.recipe)] if card.recipe else []
    if card.base_model:
        recipe.append(("begun with", card.base_model))
    if training or recipe:
        parts.append(
            "## Training\n" + tables.markdown(("what", "value"), [*recipe, *training.items()])
        )
    data = [card.data, ", ".join(f"`{name}`" for name in card.sources)]
    if any(data):
        parts.append("## Data\n" + "\n\n".join(filter(None, data)))
    if figures:
        parts.append("## Figures\n" + _figures(figures))
    parts.append("## Checked\n" + _checked(differences, dtype))
    if card.license:
        parts.append(f"## Licence\n{card.license}")
    return "\n\n".join(parts) + "\n"


def _front_matter(card: Card, library: str, task: str, figures: Sequence[Result]) -> str:
    lines = [f"library_name: {library}", f"pipeline_tag: {task}", "tags: [retrieval, qac_jax]"]
    for name in ("license", "language", "base_model", "datasets"):
        if value := getattr(card, name):
            lines.append(f"{name}: {_yaml(value if isinstance(value, str) else list(value))}")
    lines.append(f"widget: {_yaml(_widget(card, task))}")
    if figures:
        lines.append(f"model-index: {_yaml(_index(card, figures))}")
    return "\n".join(["---", *lines, "---"])


def _yaml(value: Any) -> str:
    # JSON is YAML, whatever stands in its strings.
    return json.dumps(value, ensure_ascii=False)


def _widget(card: Card, task: str) -> list[dict[str, Any]]:
    """What a hub's page offers to try the model with."""
    texts = card.widget or _TRIED.get(task, _TRIED[""])
    if task != "sentence-similarity":
        return [{"text": text} for text in texts]
    return [{"source_sentence": texts[0], "sentences": list(texts[1:])}]


def _index(card: Card, figures: Sequence[Result]) -> list[dict[str, Any]]:
    """The figures as hubs list them: one result for each collection or run."""
    results = [
        {
            "task": {"type": "information-retrieval", "name": "Information retrieval"},
            "dataset": {"name": result.name, "type": _slug(result.name)},
            "metrics": [
                {"type": measure_names.theirs(measure), "value": round(value, 6)}
                for measure, value in result.mean.items()
            ],
        }
        for result in figures
    ]
    return [{"name": card.name, "results": results}]


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-").lower() or "unknown"


def at_hub(sources: Sequence[str]) -> tuple[str, ...]:
    """The data sets among them that are at the Hub, by their names there."""
    named = (source.removeprefix("hf:") for source in sources if source.startswith("hf:"))
    return tuple(dict.fromkeys(re.split("[:@]", name)[0] for name in named))


def separator(tokenizer: Tokenizer) -> str:
    """The token that stands between a title and its text; "" in vocabularies without one."""
    role = next((role for role in ("sep", "eos") if tokenizer.has(role)), "")
    return tokenizer.special_tokens[role] if role else ""


def _titles(card: Card, form: str) -> str:
    """Code that joins a passage's title and text as in training."""
    joined = {
        "space": "{title} {text}",
        "marked": "{title} TEXT: {text}",
        "separate": f"{{title}}{card.separator}{{text}}",
        "segments": f"{{title}}{card.separator}{{text}}",
    }.get(card.title)
    if joined is None:
        return "Titles of passages were left out in training; encode the texts alone."
    called = {
        "dpr": "tokenizer = AutoTokenizer.from_pretrained({place})\n"
        'tokens = tokenizer([passage("Lamps", "A lamp burns oil.")], return_tensors="pt")\n'
        "vectors = passages(**tokens).pooler_output",
    }.get(form, 'vectors = model.encode_document([passage("Lamps", "A lamp burns oil.")])')
    if form == "dpr":
        called = "from transformers import AutoTokenizer\n\n" + called.format(
            place=json.dumps(f"{card.name}/passage")
        )
    note = (
        " (qac_jax also gives the title a token type of its own, which this does not)"
        if card.title == "segments"
        else ""
    )
    return (
        f"A passage is read with its title as in training{note}:\n```python\n"
        f'def passage(title, text):\n    return f"{joined}" if title else text\n\n\n{called}\n```'
    )


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
