"""What newcomers are promised stands as a command on a page whose commands a test runs."""

from __future__ import annotations

from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]
# Page -> the test that runs what stands on it.
RUN_BY = {
    "README.md": "tests/e2e/test_readme.py",
    "docs/objectives.md": "tests/e2e/test_readme.py",
    "docs/sharing.md": "tests/e2e/test_readme.py",
    "docs/watching.md": "tests/e2e/test_readme.py",
    "docs/seqio.md": "tests/equivalence/test_seqio_grain.py",
    "docs/extending.md": "tests/e2e/test_extending.py",
}
# Promise -> where it is shown. Those that need the network or minutes are run by the test named.
SHOWN = {
    "recipes are listed, each with what it needs": ("README.md", "qac recipes own_corpus"),
    "a recipe runs by its name": ("README.md", "qac run own_corpus --data_dir data/mine"),
    "gin files are found from anywhere": ("README.md", "--gin_file objectives/mlm.gin"),
    "extras are listed with what they bring": ("README.md", "qac doctor"),
    "settings of a recipe are flags": ("README.md", "--budget tiny"),
    "a plan says what it costs": ("README.md", "qac plan demo"),
    "a stage is checked before it runs": ("docs/objectives.md", "--steps 4 --dry_run"),
    "an objective of one's own": ("docs/extending.md", "qac pretrain --gin_file objectives/"),
    "seqio tasks by name": ("docs/seqio.md", "seqio.get_mixture_or_task("),
    "seqio as the trainer's feed": ("docs/seqio.md", "--feed seqio"),
    "TensorBoard's files": ("docs/watching.md", "--tensorboard`"),
    "a retrieval probe while training": ("docs/watching.md", "--probe out/held_out"),
    "a model card with all that hubs read": ("docs/sharing.md", "--base_model owner/small"),
    "vectors for FAISS": ("docs/sharing.md", "qac export --faiss out/index"),
    "ir_measures' names": ("docs/sharing.md", "--measures nDCG@10,RR@10,R@100,AP"),
    "figures as a page": ("README.md", "qac report --folder out/mine --out out/page"),
}


@pytest.mark.parametrize("promise", SHOWN)
def test_every_promise_is_a_command_that_a_test_runs(promise: str) -> None:
    page, command = SHOWN[promise]
    assert command in (ROOT / page).read_text(encoding="utf-8"), promise
    test = (ROOT / RUN_BY[page]).read_text(encoding="utf-8")
    assert Path(page).name in test, f"{RUN_BY[page]} does not read {page}"
