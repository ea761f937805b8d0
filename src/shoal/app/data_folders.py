"""The folders of files that are kept beside a store: stored bodies and journals."""

from pathlib import Path

from shoal.base.settings import DatabaseSettings, Settings


def body_folder(settings: Settings) -> Path | None:
    """Return the folder of stored bodies; None if they are in an S3-compatible store."""
    place = settings.bodies.place
    if place.startswith("s3://"):
        return None
    return Path(place) if place else _store_folder(settings.database) / "bodies"


def artifact_folder(settings: Settings) -> Path | None:
    """Return the folder of the files of analyses; None if they are in an S3-compatible store."""
    place = settings.audit.artifacts
    if place.startswith("s3://"):
        return None
    return Path(place) if place else _store_folder(settings.database) / "artifacts"


def journal_folder(settings: Settings) -> Path:
    """Return the folder of the journal files."""
    return settings.log.project_logs or _store_folder(settings.database) / "logs"


def _store_folder(settings: DatabaseSettings) -> Path:
    """Return the folder of the SQLite file, else the data folder."""
    if not settings.url.startswith("sqlite"):
        return settings.data_dir
    return Path(settings.url.removeprefix("sqlite:///")).expanduser().absolute().parent
