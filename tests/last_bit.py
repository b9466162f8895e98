"""A mark for tests that compare last bits between two programs."""

import os

import pytest


# Kernels that compile quickly (tests/conftest.py) round otherwise from one program to another; the
# second pass of .ci/run compiles the parity and equivalence tests as users do.
compared = pytest.mark.skipif(
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1",
    reason="last bits are compared as users compile: JAX_DISABLE_MOST_OPTIMIZATIONS=0",
)
