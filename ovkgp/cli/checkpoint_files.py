"""The files in which an interrupted fit is kept, beside the model: MODEL.training, from which ``--resume`` goes on.

Only `GPRegressor` writes them, where its training climbs an evidence; kernel="auto" has one more for each candidate.
"""

from __future__ import annotations

from pathlib import Path

from ovkgp.cli.errors import note
from ovkgp.exceptions import OptionError

CANDIDATES = ("independent", "decomposable")
"""The structures that kernel="auto" compares; the progress of each has the ending of its name."""


class CheckpointFiles:
    """The checkpoint of the fit that ends in a model file.

    Args:
        model: where the model goes.
    """

    def __init__(self, model: Path):
        self.model, self.path = model, model.with_name(f"{model.name}.training")

    @property
    def present(self) -> list[Path]:
        """Those that are there."""
        every = [self.path, *(self.path.with_name(f"{self.path.name}.{name}") for name in CANDIDATES)]
        return [path for path in every if path.is_file()]

    def require(self) -> None:
        """See that there is something to resume."""
        if not self.present:
            raise OptionError(
                f"there is nothing to resume: no interrupted fit with this --out has left a file '{self.path}'. Leave --resume "
                "out to begin."
            )

    def kept(self, is_written: bool) -> str:
        """What is on disk when Ctrl-C ends a fit, in words.

        Args:
            is_written: whether the model is.

        Example:
            >>> CheckpointFiles(Path("soil.ovkgp")).kept(is_written=True)
            "the model was written to 'soil.ovkgp'"
        """
        words = [f"the model was written to '{self.model}'"] if is_written else []
        if self.present:
            words += [f"the training so far is in '{self.path}': the same command with --resume goes on from there"]
        return ", and ".join(words) or "nothing was written"

    def clear(self) -> None:
        """Begin anew: a checkpoint of an earlier fit is taken away."""
        if self.present:
            note(f"the checkpoint '{self.path}' of an earlier fit is replaced; --resume would have gone on from it.")
            self.remove()

    def remove(self) -> None:
        """Take them away, when the fit is done."""
        for path in self.present:
            path.unlink(missing_ok=True)
