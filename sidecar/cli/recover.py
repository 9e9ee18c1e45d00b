"""``kafka-sidecar recover``: lists or delivers the records of a segment that no daemon uses."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from sidecar.cli.common import daemon_info, fail, holder_of, run_dir_option, say
from sidecar.cli.json_output import answer_with, print_answer
from sidecar.cli.options import json_option, timeout_option
from sidecar.cli.progress import WorkDone, progress
from sidecar.cli.replay import counts, describe, replay_through, why_not_all
from sidecar.cli.times import shown_bytes, table
from sidecar.common.model import ExitStatus
from sidecar.common.wording import counted
from sidecar.controller.rundir.published import read_json
from sidecar.controller.rundir.run_dir import RunDir
from sidecar.deadletter.replay import Replay, ReplayRunning
from sidecar.deadletter.salvage import (
    Salvage,
    SalvageCounts,
    SalvageError,
    SegmentInUse,
    forget_log,
    write_letters,
)
from sidecar.deadletter.spool_files import AnothersLetters
from sidecar.shm.accept_log import accept_log_folder

DAMAGE_SHOWN = 5


@click.command()
@run_dir_option
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Show the contents of FILE; write and send nothing.")
@click.option(
    "--spool-only", is_flag=True, help="Write the dead letters, but do not send them; use `replay` later."
)
@click.option("--remove", is_flag=True, help="Delete FILE once all its records are dead letters.")
@click.option("--path", "folder", type=click.Path(path_type=Path), help="Folder for the dead letters.")
@click.option(
    "--clients-max",
    type=click.IntRange(1, 65_536),
    help="The daemon.clients_max of a FILE with a damaged header.",
)
@timeout_option(150.0, "for the outcomes of a chunk")
@json_option
def recover(
    *,
    run_dir: RunDir,
    file: Path | None,
    dry_run: bool,
    spool_only: bool,
    remove: bool,
    folder: Path | None,
    clients_max: int | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    """List segments without a daemon, or deliver the records in FILE.

    A daemon that finds a segment it cannot read (another layout version, a damaged header) keeps it as
    NAME.set-aside-MILLISECONDS. Without FILE, all segments of this run dir are listed. With FILE, its undelivered
    records become dead letters, and the running daemon sends them as in `replay`; without a daemon they stay dead
    letters. FILE is never changed, and deleted only with --remove, when everything in it could be read.

    Exit 0 on success, 1 when something could not be read or failed again, 2 when FILE belongs to a running daemon
    or to the next one.

    \b
    kafka-sidecar recover
    kafka-sidecar recover --dry-run /dev/shm/NAME.set-aside-1766287000000
    kafka-sidecar recover --remove /dev/shm/NAME.set-aside-1766287000000
    """
    if file is None and (remove or spool_only):
        raise click.UsageError("--remove and --spool-only need a FILE: `recover` alone lists the files.")
    if file is None:
        _list_segments(run_dir, clients_max, as_json=as_json)
        return
    report = _Report(file, is_quiet=as_json)
    if as_json:
        answer_with(report.fields)
    try:
        with Salvage.open(file, clients_max=clients_max) as salvage:
            report.salvage = salvage
            for note in salvage.notes:
                say(note)
            if dry_run:
                with progress(report.work_done):
                    for _ in salvage.undelivered():
                        pass
                report.say(_counts(file, salvage.found))
                _end(report, is_good=not salvage.found.damage)
                return
            if not remove:
                _refuse_next(run_dir, file)
            where = folder or _folder(run_dir)
            is_good = _write_letters(report, salvage, where)
            if remove:
                _remove(report, is_whole=not salvage.found.damage)
    except SegmentInUse as error:
        fail(str(error), ExitStatus.USAGE)
    except (AnothersLetters, SalvageError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"The dead letters of {file} cannot be written: {error}. Nothing was removed.")
    if report.letters is not None and not spool_only:
        is_good = _send(run_dir, where, report, report.letters, timeout_s) and is_good
    _end(report, is_good=is_good)


def _list_segments(run_dir: RunDir, clients_max: int | None, *, as_json: bool) -> None:
    found = list(_segments(run_dir, clients_max))
    if as_json:
        answer_with(lambda: {"run_dir": str(run_dir.path), "segments": found})
        print_answer(None)
    else:
        click.echo(_listed(run_dir, found))


def _refuse_next(run_dir: RunDir, file: Path) -> None:
    """End the command if the next daemon will deliver the records of ``file``."""
    if _is_next(run_dir, file):
        fail(
            f"{file} belongs to the next daemon on run dir {run_dir.path}: start that to deliver it. "
            "To recover it without a daemon, add --remove.",
            ExitStatus.USAGE,
        )
    if accept_log_folder(str(file)).exists():
        fail(
            f"{file} has a log of accepted records next to it, and the next daemon with this pool.path "
            "delivers them: start that. To recover them yourself: --remove.",
            ExitStatus.USAGE,
        )


def _write_letters(report: _Report, salvage: Salvage, folder: Path) -> bool:
    """Write the dead letters. Returns whether all of the file could be read."""
    with progress(report.work_done):
        letters, unreadable = write_letters(salvage, folder)
    report.say(_counts(report.file, salvage.found))
    if salvage.found.records:
        report.letters = letters
        report.say(f"They are dead letters in {letters} now.")
    else:
        letters.unlink()
    return not (salvage.found.damage or unreadable)


class _Report:
    """What has been done with a segment: lines for a person, or the object of --json."""

    def __init__(self, file: Path, *, is_quiet: bool) -> None:
        self.file = file
        self._is_quiet = is_quiet
        self.salvage: Salvage | None = None
        self.letters: Path | None = None
        self.is_removed = False
        self.replay: Replay | None = None

    def say(self, text: str) -> None:
        if not self._is_quiet:
            click.echo(text)

    def end(self, error: str | None) -> None:
        if self._is_quiet:
            print_answer(error)

    def work_done(self) -> WorkDone:
        found = self.salvage.found if self.salvage else SalvageCounts()
        return WorkDone(f"{counted(found.records, 'record')} read", None)

    def fields(self) -> dict[str, Any]:
        found = self.salvage.found if self.salvage else SalvageCounts()
        return {
            "segment": str(self.file),
            "undelivered": found.undelivered,
            "failed_unacked": found.failed,
            "possibly_persisted": found.possibly_persisted,
            "of_transactions": found.of_transactions,
            "topics": sorted(found.topics),
            "damage": found.damage,
            "notes": self.salvage.notes if self.salvage else [],
            "letters": None if self.letters is None else str(self.letters),
            "is_removed": self.is_removed,
            "replay": None if self.replay is None else counts(self.replay.tally),
        }


def _end(report: _Report, *, is_good: bool) -> None:
    """Print the object of --json, and end with 1 unless everything was read and delivered."""
    if is_good:
        report.end(None)
        return
    why = why_not_all(report.replay.tally) if report.replay else None
    report.end(why or f"Not all of {report.file} could be read.")
    raise SystemExit(int(ExitStatus.FAILED))


def _send(run_dir: RunDir, folder: Path, report: _Report, letters: Path, timeout_s: float) -> bool:
    """Replay only these letters. Returns False when some failed. Without a daemon the letters stay."""
    if holder_of(run_dir) is None:
        report.say(
            f"No daemon runs on run dir {run_dir.path}: start one, then `kafka-sidecar replay` sends them."
        )
        return True
    work = report.replay = Replay(folder, files=[letters])
    try:
        replay_through(run_dir, work, timeout_s)
    except ReplayRunning as running:
        fail(f"{running} Then `kafka-sidecar replay` sends them.")
    report.say(describe(work.tally, folder, is_dry=False))
    return not work.tally.total("failed")


def _remove(report: _Report, *, is_whole: bool) -> None:
    file = report.file
    if is_whole:
        forget_log(file)  # first: without the segment the log would be restored
        file.unlink()
        report.is_removed = True
        report.say(f"{file} is removed.")
    else:
        report.say(
            f"{file} is kept: not all of it could be read. Remove it by hand when you are done with it."
        )


def _counts(file: Path, found: SalvageCounts) -> str:
    topics = ", ".join(sorted(found.topics)) or "none"
    lines = [
        f"{file}",
        f"  undelivered         {found.undelivered:>12,}",
        f"  failed, unacked     {found.failed:>12,}",
        f"  possibly persisted  {found.possibly_persisted:>12,}  of these were sent: they may be there already",
        f"  in transactions     {found.of_transactions:>12,}  and in stages: they end with these, and are not read",
        f"  unreadable          {len(found.damage):>12,}  places",
        f"  topics              {topics}",
    ]
    lines += [f"    {damage}" for damage in found.damage[:DAMAGE_SHOWN]]
    if len(found.damage) > DAMAGE_SHOWN:
        lines.append(f"    and {len(found.damage) - DAMAGE_SHOWN:,} more")
    return "\n".join(lines)


def _segments(run_dir: RunDir, clients_max: int | None) -> Iterator[dict[str, Any]]:
    """The segments of this run directory, and what is in them."""
    for path in _candidates(run_dir):
        found, why = SalvageCounts(), ""
        try:
            with Salvage.open(path, clients_max=clients_max) as salvage:
                for _ in salvage.undelivered():
                    pass
                found = salvage.found
                state = "the next daemon's" if _is_next(run_dir, path) else "set aside"
                if salvage.notes:
                    state = "damaged header"
        except SegmentInUse:
            state, why = "in use", "a daemon has it and delivers it"
        except SalvageError as error:
            state, why = "not readable", str(error).removeprefix(f"{path} ").replace(str(path), "FILE")
        yield {
            "path": str(path),
            "memory_bytes": path.stat().st_blocks * 512,
            "state": state,
            "why": why,
            "undelivered": found.undelivered,
            "failed_unacked": found.failed,
            "damage": found.damage,
        }


def _listed(run_dir: RunDir, segments: list[dict[str, Any]]) -> str:
    rows: list[list[str]] = []
    for each in segments:
        what = f"{each['undelivered']:,} undelivered, {each['failed_unacked']:,} failed and unacked"
        if each["damage"]:
            what += f", {len(each['damage']):,} unreadable places"
        rows.append([each["path"], shown_bytes(each["memory_bytes"]), each["state"], each["why"] or what])
    if not rows:
        return f"No segment of run dir {run_dir.path} is left anywhere."
    return table(["segment", "memory", "state", "contents"], rows)


def _candidates(run_dir: RunDir) -> list[Path]:
    """Segments of this run directory: the recorded one, those with the default name, and the renamed ones
    next to them.
    """
    usual = run_dir.default_segment_path("*")
    found = set(usual.parent.glob(f"{usual.name}*"))
    recorded = _recorded(run_dir)
    if recorded is not None:
        found |= {
            path
            for path in (recorded, *recorded.parent.glob(f"{recorded.name}.set-aside-*"))
            if path.exists()
        }
    owners = {os.geteuid(), *(_owner(each) for each in [run_dir.path])}
    return sorted(path for path in found if _owner(path) in owners)


def _owner(path: Path) -> int | None:
    """The uid of a file or folder. None for links, pipes and missing files, as any user may create those in
    /dev/shm.
    """
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_uid if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode) else None


def _recorded(run_dir: RunDir) -> Path | None:
    said = read_json(run_dir.files.segment_json)
    return Path(said["path"]) if said and isinstance(said.get("path"), str) else None


def _is_next(run_dir: RunDir, file: Path) -> bool:
    recorded = _recorded(run_dir)
    return recorded is not None and recorded.absolute() == file.absolute()


def _folder(run_dir: RunDir) -> Path:
    """The daemon's folder of dead letters; the default one when no daemon runs."""
    if holder_of(run_dir) is None:
        return run_dir.dead_letters
    return Path(daemon_info(run_dir)["dead_letters"])
