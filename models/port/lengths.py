"""On how many tokens a model trains: what a family finds out about a wanted length, and what it says where none fits.

Each family has a module ``lengths`` with a function ``fit``: plain Python, so that a recipe is checked without Paddle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from models.port.schema import ConfigError

#: In a way out of a :class:`LengthError`, what stands for the wanted length; all other names are configuration keys.
LENGTH = "length"


@dataclass(frozen=True)
class Fit:
    """The length that a model trains on.

    Attributes:
        length: T, to which every text is padded; at least the wanted length.
        keys: configuration keys that follow from the length, where nobody has set them.
        cut: configuration keys of the model that trains, in place of those of the model that is stored; empty where
            it trains as a whole.
        padding: why texts are padded to more than the wanted length; empty where they are not.
        positions: which of its positions the model trains; empty where it trains them all.
    """

    length: int
    keys: Mapping[str, Any] = field(default_factory=dict)
    cut: Mapping[str, Any] = field(default_factory=dict)
    padding: str = ""
    positions: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about it, a line each."""
        return tuple(note for note in (self.padding, self.positions) if note)


class LengthError(ConfigError):
    """No length that a model can be trained on holds the wanted tokens.

    Attributes:
        ways: each a way out: what to set (a configuration key or :data:`LENGTH`) to which value. Each was tried.
    """

    def __init__(self, key: str, message: str, ways: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(key, message)
        self.ways = list(ways)

    def advice(self, name_of: Mapping[str, str], key_prefix: str) -> str:
        """The problem and the ways out in a line.

        Args:
            name_of: what a name of a way is called by the user, such as :data:`LENGTH`.
            key_prefix: what stands before all other names.
        """
        ways = [
            " and ".join(f"{name_of.get(name, key_prefix + name)} to {value}" for name, value in way.items())
            for way in self.ways
        ]
        return f"{self.message}; set {', or '.join(ways)}" if ways else self.message
