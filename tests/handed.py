"""Measure, in the test's process, the messages that the port's process would send."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from toolkit.parity.exchange.handover import Sender, read_messages


class RecordingSender(Sender):
    """A sender that records the bytes that it would write to a pipe."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.written = bytearray()

    def _write_bytes(self, data: memoryview) -> None:
        self.written += data


def measure_messages(ledger: Any, send: Callable[[Sender], None]) -> Any:
    """Return the result of a comparator's ledger for the messages that `send` sends."""
    sender = RecordingSender()
    send(sender)
    sender.end()
    for message in read_messages(io.BytesIO(bytes(sender.written))):
        ledger.handle(message)
    return ledger.result()
