"""The retrievers of docs/serving.md give other frameworks the hits of a Retriever."""

import re
from pathlib import Path
from typing import Any

import pytest
import toy_retrieval as toy

from qac_jax import Retriever


PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
CODE = dict(re.findall(r"^```python (\w+)\n(.*?)^```$", PAGE, re.M | re.S))
WAYS: dict[str, tuple[str, Any]] = {
    "langchain_core": (
        "LangChainRetriever(retriever=retriever, k=2)",
        lambda made, asked: [
            (d.id, d.page_content, d.metadata["score"]) for d in made.invoke(asked)
        ],
    ),
    "llama_index": (
        "LlamaIndexRetriever(retriever, k=2)",
        lambda made, asked: [(n.node.node_id, n.node.text, n.score) for n in made.retrieve(asked)],
    ),
    "haystack": (
        "HaystackRetriever(retriever, k=2)",
        lambda made, asked: [(d.id, d.content, d.score) for d in made.run(asked)["documents"]],
    ),
}


def test_each_example_is_tested() -> None:
    assert CODE.keys() == WAYS.keys()


@pytest.mark.filterwarnings("ignore")  # of the frameworks
@pytest.mark.parametrize("name", WAYS)
def test_its_hits_are_the_retrievers(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    texts = ["copper lamp river", "winter whisper garden", "anchor stone"]
    retriever = Retriever.load(toy.save_encoder(tmp_path / "encoder")).index(texts)
    scope: dict[str, Any] = {}
    exec(CODE[name], scope)
    call, hits = WAYS[name]
    expected = [(hit.id, hit.text, hit.score) for hit in retriever.search("copper lamp", k=2)]
    assert hits(eval(call, scope, {"retriever": retriever}), "copper lamp") == expected
