"""What the port's process would hand over, measured in this one."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from toolkit.parity.job.handover import Sender, received


class Kept(Sender):
    """Keeps what a pipe would take."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.written = bytearray()

    def _put(self, data: memoryview) -> None:
        self.written += data


def measured(ledger: Any, hand: Callable[[Sender], None]) -> Any:
    """What a comparator's ledger makes of what is handed over."""
    over = Kept()
    hand(over)
    over.end()
    for handed in received(io.BytesIO(bytes(over.written))):
        ledger.take(handed)
    return ledger.result()
