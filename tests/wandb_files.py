"""Read the files of wandb: the records of ``run-ID.wandb``, in LevelDB's log format, as wandb's own messages."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER, BLOCK = 7, 32768
#: Types of the last chunk of a record.
WHOLE, LAST = 1, 4


def read_records(path: Path) -> Iterator[Any]:
    """Yield wandb's records in a file, up to a chunk that a kill has cut."""
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    assert data[:4] == b":W&B"
    position, parts = HEADER, b""
    while position + HEADER <= len(data):
        bytes_left = BLOCK - position % BLOCK
        if bytes_left < HEADER:  # no header fits: the block is padded
            position += bytes_left
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
        id: identifier of the run.
        config, summary: values by key.
        rows: logged values, without wandb's own columns.
        axes: name or glob of a metric -> the metric on its x axis.
        files: names of the saved files.
        artifacts: types of the logged artifacts.
        exit_code: exit code of the run; None if it was killed.
    """

    def __init__(self, path: Path) -> None:
        self.config, self.summary, self.axes = {}, {}, {}
        self.rows, self.files, self.artifacts = [], [], []
        self.exit_code: int | None = None
        for record in read_records(path):
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
    """Return the starts of the run in a run folder, in order."""
    return [OfflineRun(path) for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))]
