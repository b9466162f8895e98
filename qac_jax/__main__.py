"""`python -m qac_jax`: the command line."""

import sys

from qac_jax.cli import main


if __name__ == "__main__":
    sys.exit(main())
