"""The number of tokens that a model trains on: the fit of a wanted length, and the error where none fits.

Each family has a module ``lengths`` with a function ``fit``: plain Python, so that a recipe is checked without Paddle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from models.port.schema import ConfigError

#: Stands for the wanted length in the ways of a :class:`LengthError`; all other names are configuration keys.
LENGTH = "length"


@dataclass(frozen=True)
class Fit:
    """The length that a model trains on.

    Attributes:
        length: T, to which every text is padded; at least the wanted length.
        keys: configuration keys that follow from the length unless they are set.
        cut: configuration keys of the trained model that replace those of the stored model; empty if the whole
            model trains.
        padding: why texts are padded beyond the wanted length; empty if they are not.
        positions: which of its positions the model trains; empty if all.
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
    """No length that the model can train on holds the wanted tokens.

    Attributes:
        ways: each maps what to set (a configuration key or :data:`LENGTH`) to a value. Each was tried.
    """

    def __init__(self, key: str, message: str, ways: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(key, message)
        self.ways = list(ways)

    def advice(self, name_of: Mapping[str, str], key_prefix: str) -> str:
        """Return the problem and its ways out.

        Args:
            name_of: the user's names for names in a way, such as :data:`LENGTH`.
            key_prefix: put before all other names.
        """
        ways = [
            " and ".join(f"{name_of.get(name, key_prefix + name)} to {value}" for name, value in way.items())
            for way in self.ways
        ]
        return f"{self.message}; set {', or '.join(ways)}" if ways else self.message
