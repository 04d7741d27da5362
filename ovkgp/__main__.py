"""``python -m ovkgp``: the same as the command ``ovkgp``."""

from __future__ import annotations

from ovkgp.cli import main

if __name__ == "__main__":
    main()
