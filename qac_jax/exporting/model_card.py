"""A model card: the README.md of an exported model, with the front matter that hubs read.

Its text is a template, `assets/report/model_card.md`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import ModelCardData

import qac_jax
from qac_jax import artifacts, progress
from qac_jax.evaluation.results import Result
from qac_jax.report import tables
from qac_jax.report.tables import number
from qac_jax.text.tokenizers import Tokenizer


_TEMPLATE = Path(qac_jax.__file__).parent / "assets" / "report" / "model_card.md"
_HEADER = ("what", "value")
# Form of the folder -> library and task at the hub.
_HUB = {
    "sentence_transformers": ("sentence-transformers", "sentence-similarity"),
    "two_towers": ("sentence-transformers", "sentence-similarity"),
    "encoder": ("transformers", "feature-extraction"),
    "CrossEncoder": ("transformers", "text-ranking"),
    "T5": ("transformers", "text-generation"),
    "PointerGenerator": ("qac_jax", "text-generation"),
}
# How a title joins its passage, for Python's format with the separating token.
_TITLES = {
    "space": "{{title}} {{text}}",
    "separate": "{{title}}{separator}{{text}}",
    "segments": "{{title}}{separator}{{text}}",
    "marked": "{{title}} TEXT: {{text}}",
}


def text(
    card: Mapping[str, Any],
    form: str,
    module: Any,
    place: Path,
    tokenizer: Tokenizer,
    figures: Sequence[Result],
) -> str:
    """The whole card.

    card: what its owner says (the fields of `qac export`). form: a key of _HUB. place: the model's
    folder.
    """
    title, measures = getattr(module.config, "title", ""), tables.measures(figures)
    measured = [
        [result.name, *(number(result.mean.get(m)) for m in measures), result.queries]
        for result in figures
    ]
    role = next((role for role in ("sep", "eos") if tokenizer.has(role)), "")
    separator = tokenizer.special_tokens[role] if role else ""
    library, task = _HUB[form]
    data = ModelCardData(
        library_name=library,
        pipeline_tag=task,
        tags=["retrieval", "qac_jax"],
        license=card["license"] or None,
        language=card["language"] or None,
        base_model=card["base_model"] or None,
        datasets=list(card["datasets"]) or None,
        model_name=card["name"],
    )
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        card={**card, "title": title},
        form=form,
        data=data.to_yaml(),
        facts=(facts := _facts(module)),
        facts_table=tables.markdown(_HEADER, list(facts.items())),
        joined=_TITLES.get(title, "").format(separator=separator),
        training=tables.markdown(_HEADER, trained) if (trained := _training(place)) else "",
        figures=tables.markdown(["", *measures, "queries"], measured) if figures else "",
    )


def _facts(module: Any) -> dict[str, Any]:
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
            "a passage's title": "left out" if config.title == "none" else f"read, {config.title}",
        }
        prompts = {side: getattr(config, f"{side}_prompt") for side in ("query", "passage")}
        facts |= {
            f"before each {side}": f"`{prompt}`" for side, prompt in prompts.items() if prompt
        }
    if getattr(module, "reads_scores", False):
        facts["before each query"] = (
            "the first ranking's score, in percent of the best other passage's"
        )
    return facts


def _training(place: Path) -> list[tuple[str, Any]]:
    """How an artefact of ours was trained, from its record."""
    record = artifacts.peek(place)
    if record is None or record["kind"] != "parameters":
        return []
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
    return [(name, value) for name, value in facts.items() if value]
