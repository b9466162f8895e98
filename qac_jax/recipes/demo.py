"""The demo: `own_corpus` on a collection that ships with people's questions."""

import dataclasses

from qac_jax.pipeline.recipe import Run
from qac_jax.recipes.own_corpus import MINILM, OwnCorpus, own_corpus


# The lower four of MiniLM's six layers.
_LOWER = "embeddings|/layers/[0-3]/"


@dataclasses.dataclass(frozen=True)
class Demo(OwnCorpus):
    # Half of the budget's steps, of MiniLM's upper two layers: eight minutes in all.
    fine_steps: int = 50
    frozen: str = _LOWER


def demo(run: Run, p: Demo) -> None:
    """A retriever for 25 Wikipedia articles without a label, measured on 1,000 questions of people.

        launch/demo.sh          or          qac run demo --out out/demo

    The recipe own_corpus on 820 passages that ship (`assets/demo/wikipedia`, CC BY-SA 4.0). Rows of
    the table: BM25, MiniLM as it is (the start), the same trained on the passages alone (retriever
    1), and both beside BM25. The questions measure and nothing else: they neither train nor choose.

    Set: nothing.
    Commonly overridden: what own_corpus lists.
    """
    run.data = "shipped:demo/wikipedia"
    if p.frozen == _LOWER and p.start != MINILM:
        p = dataclasses.replace(p, frozen="")
    own_corpus(run, p)
