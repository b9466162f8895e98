"""The notebooks of launch/colab: every cell runs in tiny settings, whose outputs are kept.

`python tests/e2e/test_notebooks.py` runs them and keeps the outputs, after a change of a cell.
"""

import json
import os
import re
import runpy
import shlex
import socket
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_retrieval as toy
from toy_process import devices


ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "launch" / "colab"
LARGEST = 60_000  # characters of an output that is kept
NAMES = ["1_tour", "2_own_documents", "3_new_objective", "4_profile", "5_claims"]


def test_they_keep_small_outputs_and_install_from_the_one_address() -> None:
    assert sum(path.stat().st_size for path in FOLDER.glob("*.ipynb")) < 400_000
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES
    written = runpy.run_path(str(ROOT / "launch" / "address.py"))["written"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address, other = project["urls"].get("Repository", ""), "https://github.com/of/another"
    for path, text in written(other).items():
        assert text.count("of/another") == (1 if path.suffix == ".ipynb" else len(NAMES)), path
    for path, text in written(address).items():
        assert path.read_text(encoding="utf-8") == text and "OWNER" not in text, path
        cells = json.loads(text)["cells"] if path.suffix == ".ipynb" else []
        assert not any(cell["metadata"] for cell in cells), path
        outputs = [output for cell in cells for output in cell.get("outputs", ())]
        assert bool(outputs) == bool(cells) and "error" not in map(kind, outputs), path
        assert not re.search(r"/(home|root|tmp|work|Users|var)/", json.dumps(outputs)), path


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # of Jupyter's packages
@pytest.mark.parametrize("name", NAMES)
def test_every_cell_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat

    if name == "2_own_documents":
        monkeypatch.setenv("QAC_OWN_FLAGS", shlex.join(own_documents(tmp_path)))
    notebook = executed(name, tmp_path)
    shown = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    if name == "2_own_documents":
        assert any("Caution" in output.get("text", "") for output in shown)  # the verdict
        return
    assert any("image/svg+xml" in output.get("data", {}) for output in shown)
    kept = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    for cell, before in zip(notebook.cells, kept.cells, strict=True):
        found = {kind(output) for output in kept_of(cell)}
        assert found == {kind(output) for output in before.get("outputs", ())}, cell.source


def executed(name: str, folder: Path) -> Any:
    """The notebook after all cells, in a process of its own in this folder."""
    import nbclient
    import nbformat

    path = os.pathsep.join((str(ROOT), str(folder)))
    environment = devices(QAC_TINY="1", IPYTHONDIR=str(folder / "ipython"), PYTHONPATH=path)
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    client = nbclient.NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
    )
    client.execute(env=environment)
    return notebook


def kind(output: dict[str, Any]) -> str:
    return " ".join([output["output_type"], *sorted(output.get("data", ()))])


def kept_of(cell: Any) -> list[Any]:
    """What is worth keeping: no notices and bars of progress, no whole report."""
    outputs = cell.get("outputs", ())
    return [o for o in outputs if o.get("name") != "stderr" and len(json.dumps(o)) <= LARGEST]


def keep(name: str) -> None:
    """Runs a notebook and stores its outputs in it."""
    path = FOLDER / f"{name}.ipynb"
    stored = json.loads(path.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        cells = executed(name, Path(folder)).cells
        for before, cell in zip(stored["cells"], cells, strict=True):
            if cell.cell_type == "code":
                text = json.dumps(kept_of(cell)).replace(f"{folder}/", "")
                text = text.replace(f"{socket.gethostname()}.trace", "HOST.trace")
                before["outputs"] = json.loads(text)
                for output in before["outputs"]:
                    if "execution_count" in output:
                        output["execution_count"] = None
    path.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def own_documents(folder: Path) -> list[str]:
    """Thirty documents in the notebook's folder, with questions; flags of a short training."""
    rng = np.random.default_rng(0)
    (folder / "documents").mkdir()
    lines = []
    for number in range(30):
        text = toy.sentence(rng, 20)
        (folder / "documents" / f"d{number}.md").write_text(f"# About {number}\n\n{text}\n")
        asked = [f"what is the {' '.join(text.split()[:3])} {number}?"]
        lines.append(json.dumps({"_id": f"d{number}.md#0", "queries": asked}))
    (folder / "asked.jsonl").write_text("\n".join(lines) + "\n")
    start = toy.save_encoder(folder / "start")
    return [
        *(f"--start={start}", "--fine_steps=2", "--n_passages=4", "--n_queries=4", "--turns=1"),
        *("--groups=1", "--passage_length=24", "--query_length=12", "--generator="),
        f"--gin.generate.Generate.imported={folder / 'asked.jsonl'}",
        "--gin.generate.Generate.skip_bad=30",
        "--gin.evaluate.Evaluate.permutations=50",
    ]


if __name__ == "__main__":
    for asked in sys.argv[1:] or NAMES:
        keep(asked)
