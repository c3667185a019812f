"""Its configuration."""

from __future__ import annotations

from typing import Any

from models.port.base import PortConfig


class EchoConfig(PortConfig):
    """The keys of :mod:`.schema`, and how the port makes means: by a product of matrices, or a sum."""

    model_type = "echo"

    def __init__(self, means: str = "product", **keys: Any) -> None:
        super().__init__(**keys)
        self.means = means


CONFIG_CLASS = EchoConfig
