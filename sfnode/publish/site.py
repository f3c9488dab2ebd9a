"""The folder of a published page. No reader ever sees a partly written file.

Every file is written under another name and then renamed. The page is written last, when all files that it
links to are complete. It can be read without these files.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest, names_folders, public_name
from sfnode.manifest.sections import BUILTIN
from sfnode.models.model_files import EMBEDDED, licence_of
from sfnode.publish import run_file
from sfnode.publish.asking import NodeAnswers
from sfnode.publish.facts import Digests, Facts, data_in_words, gather, model_in_words, task_in_words
from sfnode.publish.page import run_page
from sfnode.publish.run_file import NAME, RunFile, Sizes
from sfnode.publish.signature import Signer
from sfnode.store.data_folder import Layout
from sfnode.store.disk_errors import disk_faults
from sfnode.store.log import UpdateLog
from sfnode.store.named_files import model_of

PAGE = "index.html"

MANIFEST = "run.toml"


class Published(NamedTuple):
    """Result of publishing a page once."""

    run: RunFile
    page_bytes: int
    unmatched: Sequence[str]
    """Beginnings of keys that should be hidden, but match no member's key."""
    signed: bool
    """Whether `run.json` has its organiser's signature."""


class PublishedFolder:
    """A folder in which one page is published repeatedly."""

    def __init__(
        self,
        folder: Path,
        data_dir: Path,
        *,
        title: str = "",
        hidden: Collection[str] = (),
        url: str = "",
    ) -> None:
        self._folder, self._layout = folder, Layout(data_dir)
        self._title, self._hidden, self._url = title, hidden, url
        self._digests: Digests = {}

    def publish(
        self,
        manifest: Manifest,
        update_log: UpdateLog,
        told: NodeAnswers,
        now: datetime,
        signer: Signer | None = None,
    ) -> Published:
        """Write the page, `run.json` and the manifest from the current log. A manifest with names of this
        machine's folders is not written. `run.json` is signed if there is a `signer` and the manifest is
        written.

        Raises UserError BAD_OPTION if the folder has a page of another run, DATA_DIR_UNUSABLE or DISK_FULL if
        the folder cannot be written, and the errors of `facts.gather`.
        """
        with disk_faults(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._check_ours(manifest)
            facts = gather(manifest, update_log, self._layout.path, self._hidden, self._digests)
            run = self._run(manifest, update_log, facts, told, now)
            public = not names_folders(manifest)
            page = run_page(
                run,
                facts,
                samples=told.samples,
                by_running_node=told.running,
                has_manifest=public,
            ).encode()
            if public:
                write(self._folder / MANIFEST, manifest.to_toml().encode())
            else:  # with the folders' names removed, the manifest's hash would not be the run id
                (self._folder / MANIFEST).unlink(missing_ok=True)
            plain = run.write()
            data = signer.write(run) if signer and public else plain
            write(self._folder / NAME, data)
            write(self._folder / PAGE, page)
        return Published(run, len(page), facts.unmatched, data != plain)

    def _check_ours(self, manifest: Manifest) -> None:
        """Raise UserError BAD_OPTION for a folder with a page of another run."""
        has = (self._folder / PAGE).exists()
        if has and run_file.earlier(self._folder, manifest.run_id) is None:
            raise UserError(
                Code.BAD_OPTION,
                f"{self._folder} has an {PAGE} that is not of this run",
                "Name another folder, or remove that page first.",
            )

    def _run(
        self, manifest: Manifest, update_log: UpdateLog, facts: Facts, told: NodeAnswers, now: datetime
    ) -> RunFile:
        moments = run_file.progress(run_file.earlier(self._folder, manifest.run_id), now, facts.updates)
        hourly = run_file.hourly(moments)
        return RunFile(
            run_id=manifest.run_id.hex(),
            run_name=manifest.name,
            title=self._title or manifest.name,
            description=manifest.description,
            link=told.contact.link,
            addresses=tuple(told.contact.addresses),
            updated=now,
            url=self._url,
            protocol=manifest.protocol,
            organised=manifest.organised.organiser != "",
            complete=facts.complete,
            model=model_in_words(manifest),
            licence=_licence(manifest, self._layout),
            task=task_in_words(manifest),
            data=data_in_words(manifest),
            updates=facts.updates,
            budget=facts.budget,
            members=len(facts.members),
            updates_per_hour=told.updates_per_hour if hourly is None else hourly,
            seal=facts.seal,
            digest=facts.digest,
            quality=facts.quality,
            curve=facts.curve,
            sizes=Sizes(log=update_log.size_bytes(), model=_size_of(self._layout.model)),
            progress=moments,
        )


def _licence(manifest: Manifest, layout: Layout) -> str:
    """Return the licence that the base model's README names; empty if there is no README, or no licence in
    it."""
    source = manifest.model.source
    folder = EMBEDDED / public_name(source.removeprefix(BUILTIN)) if source.startswith(BUILTIN) else None
    folder = folder or model_of(layout, None)
    return (licence_of(folder) if folder else None) or ""


def _size_of(folder: Path) -> int | None:
    """Return the size of the files in a folder, in bytes; None if the folder does not exist."""
    if not folder.is_dir():
        return None
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def write(path: Path, content: bytes) -> None:
    """Write a file under another name, and rename it to `path` once it is complete. With the usual umask, the
    file can be read by a web server's user. Raises OSError."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        scratch.write_bytes(content)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def remove_partial(folder: Path) -> None:
    """Remove unfinished files that a killed process left behind."""
    for name in (PAGE, NAME, MANIFEST):
        for path in folder.glob(f".{name}.*.partial"):
            path.unlink(missing_ok=True)
