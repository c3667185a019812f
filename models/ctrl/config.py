"""Configuration of the CTRL port, with the keys of Hugging Face (:mod:`.schema`)."""

from __future__ import annotations

from models.port.base import PortConfig


class CTRLConfig(PortConfig):
    """The keys of ``transformers.CTRLConfig``."""

    model_type = "ctrl"


CONFIG_CLASS = CTRLConfig
