"""Check a SentencePiece model before the library loads it, because the library can crash on a damaged model.

A process cannot catch its own crash. The format is therefore checked here as far as possible, and the library then
tries the model in a separate process.
"""

from __future__ import annotations

import functools
import math
import subprocess
import sys

import numpy as np
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from models.files import another_python

#: Program that loads the model on its standard input, and encodes and decodes the model's pieces.
TRIAL = """
import sys, sentencepiece
pieces = sentencepiece.SentencePieceProcessor(model_proto=sys.stdin.buffer.read())
words = [pieces.id_to_piece(index) for index in range(pieces.get_piece_size())]
text = "".join(words)[:100000] + " \\u2581 The 3 quick\\n \\u00e9\\u0301 \\ufb01 \\U0001f600"
pieces.decode(pieces.encode(text)), pieces.encode(text, out_type="proto"), pieces.normalize(text)
"""
TRIAL_SECONDS = 120

#: Bit masks of a unit of the character map's trie, which is a double array as in Darts-clone.
LEAF, LABEL = 1 << 31, 0xFF


@functools.lru_cache(maxsize=8)
def check_pieces(model_bytes: bytes) -> None:
    """Check that the library can use a model.

    Args:
        model_bytes: content of the model's file.

    Raises:
        ValueError: the content is not a SentencePiece model, or is damaged, or the library crashes.
    """
    content = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    try:
        content.ParseFromString(model_bytes)
    except DecodeError:
        raise ValueError("not a SentencePiece model") from None
    if not content.pieces:
        raise ValueError("not a SentencePiece model: it has no pieces")
    for number, piece in enumerate(content.pieces):
        if not math.isfinite(piece.score):
            raise ValueError(f"a damaged SentencePiece model: the score of piece {number} is {piece.score}")
    for spec in (content.normalizer_spec, content.denormalizer_spec):
        _check_character_map(spec.precompiled_charsmap)
    try:
        command = another_python.code_command(sys.executable, TRIAL)
        environment = another_python.clean_environment()
        subprocess.run(
            command, input=model_bytes, env=environment, capture_output=True, timeout=TRIAL_SECONDS, check=True
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        raise ValueError("a damaged SentencePiece model: the library cannot use it") from None


def _check_character_map(character_map: bytes) -> None:
    """Check that no text leads out of a character map.

    Args:
        character_map: size of a trie in bytes, the trie of characters, and their replacement texts.

    Raises:
        ValueError: a character leads out of the map.
    """
    if not character_map:
        return
    size = int.from_bytes(character_map[:4], "little")
    if len(character_map) < 4 or size % 4 or not 0 < size <= len(character_map) - 4:
        raise ValueError("a damaged SentencePiece model: its character map is cut off")
    units = np.frombuffer(character_map, "<u4", size // 4, offset=4).astype(np.int64)
    texts = character_map[4 + size :]
    is_visited = np.zeros(len(units), dtype=bool)
    nodes = np.zeros(1, dtype=np.int64)
    while len(nodes):
        is_visited[nodes] = True
        bases = nodes ^ _child_offset(units[nodes])
        children = bases[:, None] ^ np.arange(1, 256)
        leaves = bases[(units[nodes] >> 8) & 1 == 1]
        if children.max() >= len(units) or (len(leaves) and leaves.max() >= len(units)):
            raise ValueError("a damaged SentencePiece model: its character map leads nowhere")
        if len(leaves) and (units[leaves] & (LEAF - 1)).max() >= max(texts.rfind(b"\0") + 1, 0):
            raise ValueError("a damaged SentencePiece model: its character map has no text for some character")
        next_nodes = children[(units[children] & (LEAF | LABEL)) == np.arange(1, 256)]
        nodes = np.unique(next_nodes[~is_visited[next_nodes]])


def _child_offset(units: np.ndarray) -> np.ndarray:
    """Return the offset of the children of each unit; a wide unit counts in steps of 256."""
    return (units >> 10) << ((units & (1 << 9)) >> 6)
