"""The wheel that is built from the source distribution, in an environment that has nothing else
than the base dependencies, in an empty folder.

Nothing is downloaded: the dependencies are links to the packages that are installed here. Only
those are linked that the wheel's own metadata asks for, so that a forgotten one is missed.
"""

import shutil
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import pytest
import toy_retrieval as toy
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from toy_process import devices, said


ROOT = Path(__file__).parents[2]
SOURCES = ("qac_jax", "gin_configs", "docs", "launch")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution, as a package index would have it."""
    folder = tmp_path_factory.mktemp("build")
    source = folder / "source"
    for name in SOURCES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for file in ROOT.iterdir():
        if file.is_file() and not file.name.startswith("."):
            shutil.copy(file, source)
    program = "from setuptools import build_meta as b; b.build_sdist('..')"
    _run([sys.executable, "-c", program], source)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"gin_configs/recipes/docstrings_full.gin", "launch/setup.sh", "LICENSE"} <= names
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", ".", str(sdist)]
    _run([sys.executable, "-m", "pip", "-q", *build], folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def qac(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`qac` of a virtual environment with the wheel and links to its base dependencies."""
    folder = tmp_path_factory.mktemp("venv")
    _run([sys.executable, "-m", "venv", "--without-pip", "."], folder)
    python = folder / "bin" / "python"
    install = ["install", "--no-deps", "--no-index", str(wheel)]
    _run([sys.executable, "-m", "pip", "-q", "--python", str(python), *install], folder)
    site = next(folder.glob("lib/python*/site-packages"))
    (described,) = metadata.distributions(name="qac_jax", path=[str(site)])
    base = base_of(described.requires or [])
    large = {"tensorflow", "seqio", "torch", "apache-beam", "tensorflow-datasets", "transformers"}
    assert not large & base.keys() and not {"scann", "matplotlib", "pyarrow"} & base.keys()
    links = folder / "links"
    links.mkdir()
    for distribution in base.values():
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (links / top).exists():
                (links / top).symlink_to(str(distribution.locate_file(top)))
    (site / "links.pth").write_text(f"{links}\n")
    return folder / "bin" / "qac"


def base_of(requires: list[str]) -> dict[str, metadata.Distribution]:
    """The distributions here that these requirements ask for, without any extra of ours."""
    found: dict[str, metadata.Distribution] = {}
    pending: list[tuple[str, tuple[str, ...]]] = [(text, ("",)) for text in requires]
    seen = set()
    while pending:
        text, extras = pending.pop()
        one = Requirement(text)
        wanted = not one.marker or any(one.marker.evaluate({"extra": e}) for e in extras)
        if wanted and (text, extras) not in seen:
            seen.add((text, extras))
            made = found[canonicalize_name(one.name)] = metadata.distribution(one.name)
            pending += [(needed, ("", *sorted(one.extras))) for needed in made.requires or ()]
    return found


def test_the_whole_road_from_an_empty_folder(qac: Path, tmp_path: Path) -> None:
    python = str(qac.parent / "python")
    where = _run([python, "-c", "import qac_jax; print(qac_jax.__file__)"], tmp_path)
    assert where.startswith(str(qac.parents[1]))
    toy.write_collection(tmp_path / "mine", 24, 8)

    assert "\nown_corpus " in _run([str(qac), "recipes"], tmp_path)
    found = said(COMMANDS, tmp_path, _environment(), python)
    assert "Commonly overridden" in found[COMMANDS[0]] and "conclude" in found[COMMANDS[1]]
    searched = [text for command, text in found.items() if command.endswith(" lamps")]
    assert len(searched) == 2 and all("  1  " in text for text in searched)
    assert (tmp_path / "out" / "page" / "report.html").is_file()


# The living index is MiniLM's, which the wheel has.
COMMANDS = """\
qac recipes own_corpus
qac run own_corpus --data_dir mine --start none --budget tiny --dry_run --verbose
qac prepare --format beir --documents mine --out out/passages
qac generate --passages out/passages --generator shipped:qgen --samples 1 --out out/contexts
qac tokenize --passages out/passages --contexts out/contexts --out out/pairs
qac pretrain --gin_file objectives/cotmae.gin --gin_file models/bert_tiny.gin --steps 2 \
--batch_size 8 --microbatch 0 --examples out/pairs --out out/encoder
qac embed --encoder out/encoder --pooling cls --passages out/passages --out out/vectors
qac index --vectors out/vectors --out out/index
qac search --index out/index lamps
qac search --index out/index --queries mine/queries.jsonl --out out/run
qac evaluate --runs out/run --qrels mine/qrels/test.tsv --out out/metrics
qac report --folder out --out out/page
qac index out/live --add mine/corpus.jsonl
qac search --index out/live lamps
""".splitlines()


def _environment() -> dict[str, str]:
    given = devices(JAX_PLATFORMS="cpu").items()
    return {k: v for k, v in given if not k.startswith(("PYTHON", "QAC_"))}


def _run(words: list[str], folder: Path) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=_environment())
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-500:]}\n{done.stderr[-2000:]}"
    return done.stdout
