"""`qac`, and `python -m qac_jax`: the command line, which an interrupt ends in a sentence.

Also while modules are imported, before `qac_jax.cli` can take signals.
"""

import sys


def main() -> int:
    """Entry point of the console script; returns the exit code."""
    try:
        from qac_jax import cli

        return cli.main()
    except KeyboardInterrupt:
        print("qac: interrupted before anything was begun", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
