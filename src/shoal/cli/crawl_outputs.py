"""The output files of `shoal crawl`, remembered so that `--resume` completes them even if nobody names them again.

They are remembered in a folder of this machine and not in the store: other machines may share the store, but not these
files.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct

from shoal.app.data_folders import output_folder
from shoal.base.errors import ShoalError
from shoal.base.machine import make_private
from shoal.base.settings import Settings
from shoal.crawl.crawl import Crawl
from shoal.observe.logs import note
from shoal.pages.export.output import STDOUT, Outputs
from shoal.pages.export.part_file import PartFile
from shoal.pages.export.table import read_fields


class OutputFlags(Struct, frozen=True):
    """The values of the flags `--output`, `--links`, `--fields` and `--explode`."""

    output: Sequence[str] = ()
    links: Sequence[str] = ()
    fields: str | None = None
    explode: str | None = None

    @property
    def names(self) -> list[str]:
        return [*self.output, *self.links]

    @property
    def columns(self) -> tuple[Sequence[str] | None, str | None]:
        """The chosen columns and rows of tables."""
        return read_fields(self.fields), self.explode

    @property
    def words(self) -> list[str]:
        """The flags on a command line."""
        given = [("--output", name) for name in self.output] + [("--links", name) for name in self.links]
        given += [(flag, text) for flag, text in (("--fields", self.fields), ("--explode", self.explode)) if text]
        return [word for pair in given for word in pair]

    def outputs(self) -> Outputs:
        return Outputs(self.output, self.links)

    def files(self) -> Self:
        """Return the same flags with absolute paths and without stdout, which a later process cannot continue."""

        def absolute(names: Sequence[str]) -> list[str]:
            return [str(Path(name).absolute()) for name in names if name != STDOUT]

        return msgspec.structs.replace(self, output=absolute(self.output), links=absolute(self.links))


NO_OUTPUTS = OutputFlags()


class RememberedOutputs:
    """The output files that a crawl writes in this process, stored until they are complete."""

    def __init__(self, settings: Settings, crawl: Crawl) -> None:
        self._path = output_folder(settings) / f"{crawl.bodies}.json"

    def load(self) -> OutputFlags | None:
        """Return the outputs of an earlier run that did not complete them."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=OutputFlags)
        except (OSError, msgspec.DecodeError):
            return None

    def keep(self, flags: OutputFlags) -> None:
        """Store the outputs of this run, and name the incomplete files of an earlier run that this run does not write.
        If the outputs cannot be stored, tell the user, and let the crawl begin."""
        files, earlier = flags.files(), self.load()
        if not files.names:
            return
        for name in () if earlier is None else earlier.names:
            if name not in files.names and Path(f"{name}.part").exists():
                note(f"{name}.part of an earlier run stays incomplete, because this command names other outputs.")
        try:
            make_private(self._path.parent)
            file = PartFile(str(self._path), private=True)
            file.begin()
            file.write([msgspec.json.encode(files)])
            file.complete()
        except (OSError, ShoalError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            note(f"The names of the outputs could not be stored ({why}); to resume the crawl, name them again.")

    def forget(self) -> None:
        with suppress(OSError):  # at worst, the outputs are written once more when the crawl is resumed
            self._path.unlink()
            self._path.parent.rmdir()  # if it is empty
