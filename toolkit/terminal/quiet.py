"""Silencing of libraries' start-up messages; their later warnings and errors stay."""

from __future__ import annotations

import logging
import warnings

#: Beginnings of messages printed on every start, about nothing that a user can or need change.
PYTHON_WARNINGS = ("Setuptools is replacing distutils", "No ccache found", "pkg_resources is deprecated")
PADDLENLP_MESSAGES = ("Detected that datasets module was imported before paddlenlp",)


def silence_startup() -> None:
    """Silence what importing Paddle and PaddleNLP prints. Call it before importing either."""
    for beginning in PYTHON_WARNINGS:
        warnings.filterwarnings("ignore", message=beginning)
    logger = logging.getLogger("PaddleNLP")
    if not any(isinstance(present, _OnlyProblems) for present in logger.filters):
        logger.addFilter(_OnlyProblems())


class _OnlyProblems(logging.Filter):
    """Pass warnings and errors but no known message.

    PaddleNLP sets its logger's level to DEBUG when it is imported, so a level set before does not hold; a filter does.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING and not record.getMessage().startswith(PADDLENLP_MESSAGES)
