"""The notebooks of launch/colab: stored without outputs, and every cell runs in tiny settings."""

import json
import os
import runpy
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
import toy_retrieval as toy


ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "launch" / "colab"
NAMES = ["1_tour", "2_own_documents", "3_new_objective", "4_profile", "5_claims"]


def test_they_hold_no_outputs_and_install_from_the_one_address() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES
    written = runpy.run_path(str(ROOT / "launch" / "address.py"))["written"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address, other = project["urls"].get("Repository", ""), "https://github.com/of/another"
    for path, text in written(other).items():
        assert text.count("of/another") == (1 if path.suffix == ".ipynb" else len(NAMES)), path
    for path, text in written(address).items():
        assert path.read_text(encoding="utf-8") == text and "OWNER" not in text, path
        cells = json.loads(text)["cells"] if path.suffix == ".ipynb" else []
        assert not any(cell.get("outputs") or cell["metadata"] for cell in cells), path


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # of Jupyter's packages
@pytest.mark.parametrize("name", NAMES)
def test_every_cell_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient
    import nbformat

    monkeypatch.setenv("QAC_TINY", "1")
    monkeypatch.setenv("XLA_FLAGS", "")  # one device
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(tmp_path))))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    if name == "2_own_documents":
        monkeypatch.setenv("QAC_OWN_FLAGS", shlex.join(own_documents(tmp_path)))
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    where = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where)
    client.execute()
    shown = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    if name == "2_own_documents":
        assert any("Caution" in output.get("text", "") for output in shown)  # the verdict
    else:
        assert any("image/svg+xml" in output.get("data", {}) for output in shown)


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
