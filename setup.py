"""Copies gin_configs/ into the package when it is built; pyproject.toml says everything else.

A checkout that is installed with `pip install -e .` reads gin_configs/ where it is.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithGinFiles(build_py):
    """The usual step, and the gin files."""

    def run(self):
        super().run()
        if not self.editable_mode:
            copy = Path(self.build_lib, "qac_jax", "gin_configs")
            shutil.rmtree(copy, ignore_errors=True)  # of an earlier build
            shutil.copytree("gin_configs", copy)


setup(cmdclass={"build_py": BuildWithGinFiles})
