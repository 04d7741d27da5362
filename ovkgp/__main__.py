"""Run the command line interface with ``python -m ovkgp``."""

from __future__ import annotations

from ovkgp.cli import main

if __name__ == "__main__":
    main()
