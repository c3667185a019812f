"""Silence the start-up messages of libraries. Their later warnings and errors are still shown."""

from __future__ import annotations

import logging
import warnings

#: Prefixes of messages that libraries print on every start and that a user need not act on.
PYTHON_WARNINGS = ("Setuptools is replacing distutils", "No ccache found", "pkg_resources is deprecated")
PADDLENLP_MESSAGES = ("Detected that datasets module was imported before paddlenlp",)


def silence_startup() -> None:
    """Silence the messages of Paddle and PaddleNLP at their import. Call this function before their import."""
    for prefix in PYTHON_WARNINGS:
        warnings.filterwarnings("ignore", message=prefix)
    logger = logging.getLogger("PaddleNLP")
    if not any(isinstance(present, _OnlyProblems) for present in logger.filters):
        logger.addFilter(_OnlyProblems())


class _OnlyProblems(logging.Filter):
    """Logging filter that passes warnings and errors, except the known start-up messages.

    PaddleNLP sets its logger's level to DEBUG when it is imported, so a level set before does not hold; a filter does.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a log record is a warning or an error, other than known harmless messages of PaddleNLP."""
        return record.levelno >= logging.WARNING and not record.getMessage().startswith(PADDLENLP_MESSAGES)
