"""Logging: everything goes to the logger ``memscale``, and the host program's configuration stays untouched.

If neither that logger nor the root logger has a handler, a handler on standard output is installed while something is
attached. A log file is written directly, so that it gets every line at any level that the host program sets.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

from .. import _core
from ..config import Config

logger = logging.getLogger("memscale")

_FORMAT = "memscale: %(message)s"
DEBUG, INFO, WARNING = range(3)  # levels of the core's messages
_CORE_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING)


class _StdoutHandler(logging.StreamHandler[Any]):
    """Writes to the sys.stdout of the moment, which programs may replace."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter(_FORMAT))

    @property
    def stream(self) -> Any:
        return sys.stdout

    @stream.setter
    def stream(self, value: Any) -> None: ...


class _SharedHandler:
    """The one handler on standard output, installed while at least one attachment needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._handler: logging.Handler | None = None
        self._old_level = logging.NOTSET

    def acquire(self) -> None:
        with self._lock:
            self._users += 1
            if self._users > 1 or _has_handler():
                return
            self._handler = _StdoutHandler()
            self._old_level = logger.level
            logger.addHandler(self._handler)
            if logger.level == logging.NOTSET:
                logger.setLevel(logging.INFO)

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users or self._handler is None:
                return
            logger.removeHandler(self._handler)
            logger.setLevel(self._old_level)
            self._handler = None


_shared = _SharedHandler()


def _has_handler() -> bool:
    own = [handler for handler in logger.handlers if not isinstance(handler, logging.NullHandler)]
    return bool(own or logging.getLogger().handlers)


def _from_core(level: int, text: str) -> None:
    logger.log(_CORE_LEVELS[level], "%s", text)


class Log:
    """The log of one attachment. Opened by attach, closed by detach."""

    def __init__(self, config: Config) -> None:
        self._enabled = config.enable_logging
        self._file: logging.FileHandler | None = None
        if config.log_file is not None and self._enabled:
            try:
                self._file = logging.FileHandler(config.log_file, encoding="utf-8")
            except OSError as error:
                raise ValueError(f"Config: log_file={str(config.log_file)!r} cannot be written: {error}") from error
            self._file.setFormatter(logging.Formatter("%(asctime)s " + _FORMAT))
        if self._enabled:
            _shared.acquire()
            _core.set_log(_from_core)

    def info(self, message: str, *args: object) -> None:
        self._write(logging.INFO, message, args)

    def warning(self, message: str, *args: object) -> None:
        self._write(logging.WARNING, message, args)

    def _write(self, level: int, message: str, args: tuple[object, ...]) -> None:
        if not self._enabled:
            return
        record = logger.makeRecord(logger.name, level, "(memscale)", 0, message, args, None)
        if logger.isEnabledFor(level):
            logger.handle(record)
        if self._file is not None:
            self._file.handle(record)

    def close(self) -> None:
        if self._enabled:
            self._enabled = False
            _shared.release()
            if self._file is not None:
                self._file.close()


@contextlib.contextmanager
def core_messages(level: int) -> Iterator[list[str]]:
    """The core's messages of at least this level, while the block runs."""
    messages: list[str] = []

    def keep(its_level: int, text: str) -> None:
        if its_level >= level:
            messages.append(text)

    before = _core.set_log(keep)
    try:
        yield messages
    finally:
        _core.set_log(before)
