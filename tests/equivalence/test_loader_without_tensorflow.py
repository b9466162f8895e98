"""Reading examples needs neither TensorFlow nor TFDS, with grain or without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import toy_examples


SCRIPT = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None                      # importing it raises ImportError
from qac_jax.data.loader import Loader
with Loader({examples!r}, batch_size=16, epochs=1) as loader:
    rows = sum(len(batch["passage"]) for batch in loader)
assert rows == loader.examples_per_epoch > 0, rows
heavy = ("tensorflow", "tensorflow_datasets", "seqio", "tensorflow_text")
found = [name for name in heavy if sys.modules.get(name)]
assert not found, found
print("rows", rows)
"""


def test_iterating_imports_no_tensorflow(tmp_path: Path) -> None:
    examples = str(toy_examples.tokenized(tmp_path, "passage_query").path)
    optional = ["grain", "gin", "transformers", "nltk", "scann", "tensorflow"]
    for blocked in ([], optional):
        script = SCRIPT.format(blocked=blocked, examples=examples)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("rows")
