"""The number of tokens that a model trains on, and the error if no number is possible.

Each family has a module ``lengths`` with a function ``fit``. It is plain Python, so that a recipe is checked without
Paddle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from models.port.schema import ConfigError

#: Name of the number of tokens in the suggestions of a :class:`LengthError`; all other names are configuration keys.
LENGTH = "length"


@dataclass(frozen=True)
class Fit:
    """The length that a model trains on.

    Attributes:
        length: number of tokens of each padded text, T.
        keys: configuration keys that follow from the length unless they are set.
        cut: configuration keys of the trained model that replace the stored model's keys; empty if the whole
            model trains.
        padding: reason why texts are padded beyond the required length; empty if they are not.
        positions: description of the positions that the model trains; empty if all.
    """

    length: int
    keys: Mapping[str, Any] = field(default_factory=dict)
    cut: Mapping[str, Any] = field(default_factory=dict)
    padding: str = ""
    positions: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user, one line each."""
        return tuple(note for note in (self.padding, self.positions) if note)


class LengthError(ConfigError):
    """No length that the model can train on has the required number of tokens.

    Attributes:
        ways: suggestions, each a new value for one or more names (:data:`LENGTH` or configuration keys). Each was
            tried.
    """

    def __init__(self, key: str, message: str, ways: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(key, message)
        self.ways = list(ways)

    def advice(self, user_names: Mapping[str, str], key_prefix: str) -> str:
        """Return the message and the suggestions.

        Args:
            user_names: names that the user knows, by the names in the suggestions, such as :data:`LENGTH`.
            key_prefix: prefix of all other names.
        """
        suggestions = [
            " and ".join(f"{user_names.get(name, key_prefix + name)} to {value}" for name, value in way.items())
            for way in self.ways
        ]
        return f"{self.message}; set {', or '.join(suggestions)}" if suggestions else self.message
