"""Its configuration."""

from __future__ import annotations

from models.port.base import PortConfig


class EchoConfig(PortConfig):
    """The keys of :mod:`.schema`."""

    model_type = "echo"


CONFIG_CLASS = EchoConfig
