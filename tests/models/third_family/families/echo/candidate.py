"""The port's step."""

from __future__ import annotations

from toolkit.parity.candidate.family_step import PortedStep


class EchoStep(PortedStep):
    """A step of Echo."""

    embedding_module = "body.tokens"


STEP = EchoStep
