"""Files that are written whole or not at all, and locks: what depends on the operating system."""

from __future__ import annotations

import errno
import glob
import os
import platform
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from fastltl._validation import check_path

if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        os.lseek(file, 2**30, os.SEEK_SET)  # other processes cannot read the bytes locked
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        os.lseek(file, 0, os.SEEK_SET)

else:
    import fcntl

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


#: Errors of file systems that have no locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

#: Errors of Windows when another process has a file open: access denied, sharing, lock.
IN_USE = (5, 32, 33)

#: Seconds to wait, one after the other, for a file that is in use.
PAUSES = (0.01, 0.03, 0.1, 0.3, 1.0)


def check_writable(path: str | PathLike[str]) -> Path:
    """Return the file that a path or link names; raise if it cannot be written.

    Where the folder does not exist yet, it can be created.
    """
    found = Path(os.path.realpath(check_path(path)))
    if found.exists() and not found.is_file():
        raise ValueError(f"not a regular file: {found}; choose another path.")
    if Path(path).is_symlink() and not os.access(found.parent, os.W_OK):
        raise ValueError(f"{path} is a link to {found}, which cannot be written: remove it.")
    return found


@contextmanager
def whole_file(path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for writing that takes its name only once it is complete and on the disk.

    Until then a file of that name stays as it is. A process that is killed leaves a partial file
    behind, which `discard_unfinished` removes. The new file has the permissions of the old one,
    and at no time more.
    """
    path = check_writable(path)
    begun = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666  # less the umask
    try:
        with open(begun, "x+b", opener=partial(os.open, mode=mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            begun.chmod(stat.S_IMODE(path.stat().st_mode))
        _replace(begun, path)
    except BaseException as error:
        _remove(begun)
        if isinstance(error, OSError) and error.errno and not error.filename:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    with suppress(OSError):  # flush the new name to the disk, on systems that can
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _replace(begun: Path, path: Path) -> None:
    """Give a complete file its name; wait a moment if Windows says that the old one is in use."""
    for pause in (*PAUSES, None):
        try:
            begun.replace(path)
            return
        except PermissionError as error:
            if getattr(error, "winerror", None) not in IN_USE:
                raise
            if pause is None:
                reason = f"{error.strerror}: close it in other programs"
                raise PermissionError(error.errno, reason, str(path)) from error
            time.sleep(pause)


def _remove(begun: Path) -> None:
    """Remove a partial file, if it is there."""
    with suppress(PermissionError):  # Windows removes no file that is open
        begun.unlink(missing_ok=True)


def discard_unfinished(path: Path) -> None:
    """Remove partial files that killed processes left beside a file."""
    path = Path(os.path.realpath(path))
    for begun in path.parent.glob(f".{glob.escape(path.name)}.????????.part"):
        _remove(begun)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, and create its folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(content)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Lock a checkpoint against other trainings; yield False where files cannot be locked.

    The lock is on a file beside the checkpoint. The system releases it when the process ends, even
    if it is killed; the file itself may stay then, which does no harm.
    """
    path = Path(os.path.realpath(path))  # two names of one file share a lock
    name, is_locked = path.with_name(f".{path.name}.lock"), True
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    while True:
        with open(os.open(name, flags, 0o666), "r+", encoding="utf-8", errors="replace") as file:
            try:
                _lock(file.fileno())
            except (BlockingIOError, PermissionError) as error:
                file.seek(0)
                text = file.read(200).strip()
                holder = text if text and text.isprintable() else "another process"
                message = f"{holder} trains it: wait until that ends, or use another checkpoint"
                raise OSError(error.errno, message, str(path)) from error
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                is_locked = False
            if not _is_at(name, file.fileno()):
                continue  # its holder has removed it, and another process may lock a new one
            try:
                file.truncate(0)
                file.write(f"process {os.getpid()} on {platform.node()}\n")
                file.flush()
                yield is_locked
            finally:
                with suppress(PermissionError):  # Windows removes no file that is open
                    if _is_at(name, file.fileno()):
                        name.unlink()
            return


def _is_at(path: Path, file: int) -> bool:
    """Return whether the open file is the one that has the path now."""
    if sys.platform == "win32":  # nobody can remove it, and some of its drives number files anew
        return True
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
