"""Check a SentencePiece model before the library gets it: the library trusts the file, and can crash on a bad one.

A process cannot catch its own crash. So the format is checked here as far as possible, and the library then tries the
rest in a separate process.
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

#: Loads the model on the standard input and encodes and decodes its own pieces.
TRIAL = """
import sys, sentencepiece
pieces = sentencepiece.SentencePieceProcessor(model_proto=sys.stdin.buffer.read())
words = [pieces.id_to_piece(index) for index in range(pieces.get_piece_size())]
text = "".join(words)[:100000] + " \\u2581 The 3 quick\\n \\u00e9\\u0301 \\ufb01 \\U0001f600"
pieces.decode(pieces.encode(text)), pieces.encode(text, out_type="proto"), pieces.normalize(text)
"""
TRIAL_SECONDS = 120

#: Bits of a unit of the character map's trie (a double array, as in Darts-clone).
LEAF, LABEL = 1 << 31, 0xFF


@functools.lru_cache(maxsize=8)
def check_pieces(model: bytes) -> None:
    """Check that the library can use a model. Raises ValueError if it is no SentencePiece model, a damaged one, or one
    on which the library crashes."""
    content = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    try:
        content.ParseFromString(model)
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
        command, environment = another_python.code_command(sys.executable, TRIAL), another_python.environment()
        subprocess.run(command, input=model, env=environment, capture_output=True, timeout=TRIAL_SECONDS, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        raise ValueError("a damaged SentencePiece model: the library cannot use it") from None


def _check_character_map(stored: bytes) -> None:
    """Check that no text leads out of a character map: a trie of characters, then their replacement texts. Raises
    ValueError if one would."""
    if not stored:
        return
    size = int.from_bytes(stored[:4], "little")
    if len(stored) < 4 or size % 4 or not 0 < size <= len(stored) - 4:
        raise ValueError("a damaged SentencePiece model: its character map is cut off")
    units = np.frombuffer(stored, "<u4", size // 4, offset=4).astype(np.int64)
    texts = stored[4 + size :]
    seen = np.zeros(len(units), dtype=bool)
    nodes = np.zeros(1, dtype=np.int64)
    while len(nodes):
        seen[nodes] = True
        bases = nodes ^ _offset(units[nodes])
        children = bases[:, None] ^ np.arange(1, 256)
        leaves = bases[(units[nodes] >> 8) & 1 == 1]
        if children.max() >= len(units) or (len(leaves) and leaves.max() >= len(units)):
            raise ValueError("a damaged SentencePiece model: its character map leads nowhere")
        if len(leaves) and (units[leaves] & (LEAF - 1)).max() >= max(texts.rfind(b"\0") + 1, 0):
            raise ValueError("a damaged SentencePiece model: its character map has no text for some character")
        found = children[(units[children] & (LEAF | LABEL)) == np.arange(1, 256)]
        nodes = np.unique(found[~seen[found]])


def _offset(units: np.ndarray) -> np.ndarray:
    """Offset of a unit's children; a wide unit counts in steps of 256."""
    return (units >> 10) << ((units & (1 << 9)) >> 6)
