"""What wandb has written, as its own messages: the records of ``run-ID.wandb``, LevelDB's log format."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER, BLOCK = 7, 32768
#: Types of a chunk after which a record is whole: it was in one, or this is its last.
WHOLE, LAST = 1, 4


def records(path: Path) -> Iterator[Any]:
    """wandb's records in a file, up to a chunk that was being written when the process was killed."""
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    assert data[:4] == b":W&B"
    position, parts = HEADER, b""
    while position + HEADER <= len(data):
        left = BLOCK - position % BLOCK
        if left < HEADER:  # no header fits: the block is padded
            position += left
            continue
        checksum, length, kind = struct.unpack_from("<IHB", data, position)
        chunk = data[position + HEADER : position + HEADER + length]
        if len(chunk) < length:
            return
        assert checksum == zlib.crc32(chunk, zlib.crc32(bytes([kind])))
        position, parts = position + HEADER + length, parts + chunk
        if kind in (WHOLE, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


class OfflineRun:
    """One start of a run.

    Attributes:
        id: of the run.
        config, summary: by key.
        rows: what was logged, without wandb's own columns.
        axes: by a metric's name or glob, the metric that is its x axis.
        files: that were saved.
        artifacts: types of those that were logged.
        exit_code: how it ended; None of one that was killed.
    """

    def __init__(self, path: Path) -> None:
        self.config, self.summary, self.axes = {}, {}, {}
        self.rows, self.files, self.artifacts = [], [], []
        self.exit_code: int | None = None
        for record in records(path):
            kind = record.WhichOneof("record_type")
            content = getattr(record, kind)
            if kind == "run":
                self.id, self.project, self.resume = content.run_id, content.project, content.resume
                self.config = {item.key: json.loads(item.value_json) for item in content.config.update}
            elif kind == "history":
                row = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in content.item}
                self.rows.append({key: value for key, value in row.items() if not key.startswith("_")})
            elif kind == "summary":
                self.summary |= {
                    "/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in content.update
                }
            elif kind == "metric":
                self.axes[content.glob_name or content.name] = content.step_metric
            elif kind == "files":
                self.files += [file.path for file in content.files]
            elif kind == "artifact":
                self.artifacts.append(content.type)
            elif kind == "exit":
                self.exit_code = content.exit_code


def offline_runs(folder: Path) -> list[OfflineRun]:
    """The starts of the run of a run folder, in their order."""
    return [OfflineRun(path) for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))]
