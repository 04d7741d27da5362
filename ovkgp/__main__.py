"""``python -m ovkgp``: the same as the command ``ovkgp``."""

from ovkgp.cli import main

if __name__ == "__main__":
    main()
