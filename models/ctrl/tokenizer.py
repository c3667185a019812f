"""CTRL's tokenizer: words, and byte-pair pieces of words (Keskar et al. 2019, section 3.2), id for id as
``transformers.CTRLTokenizer``.

A word is text between white space, plus one line break right after it; other white space is lost. A piece that does
not end its word has the suffix ``@@``. Needs neither Paddle nor torch.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from models.files.plain import parsed_object, read_text
from models.files.writing import write_file
from models.port.tokenization import (
    CONFIG_FILE,
    Span,
    Tokenizer,
    added_tokens,
    read_config,
    special_token,
    write_config,
)

VOCAB_FILE, MERGES_FILE = "vocab.json", "merges.txt"

#: Splits as the reference does with `regex`, for which, unlike `re`, the four separators are no white space.
WORD = re.compile(r"[\S\x1c-\x1f]+\n?")
END = "</w>"
GOES_ON = "@@"

#: Words whose pieces are cached; a megabyte of English has about thirty thousand different ones.
REMEMBERED_WORDS = 1 << 18

#: A character with fewer occurrences in training text becomes <unk>: its two pieces would be learned from these.
LEAST_CHARACTER_COUNT = 5

#: A pair of pieces with fewer occurrences is not worth a piece of its own.
LEAST_PAIR_COUNT = 2


class CTRLTokenizer(Tokenizer):
    """Byte-pair pieces of words.

    The first token for a model should be a *control code*, a word that is whole in the vocabulary
    (:meth:`control_code`). CTRL has no padding token; ``<unk>`` is used, with an attention mask of 0.

    Args:
        vocab: the text of ``vocab.json``.
        merges: the text of ``merges.txt``.

    Raises:
        ValueError: the vocabulary is not a JSON object of ids 0, 1, 2, ... or lacks a special token.
    """

    def __init__(self, vocab: str, merges: str, unk_token: str = "<unk>", pad_token: str | None = None) -> None:
        self.vocab, self.merges = vocab, merges
        self.unk_token, self.pad_token = unk_token, pad_token or unk_token
        self._ids = _read_vocab(vocab)
        self._pieces = {index: piece for piece, index in self._ids.items()}
        for token in (self.unk_token, self.pad_token):
            if token not in self._ids:
                raise ValueError(f"the special token {token!r} is not one of {VOCAB_FILE}'s {len(self._ids)} entries")
        # As in the reference, the first and the last line are skipped, and any white space separates two pieces. That
        # loses merges of pieces with a no-break space, of which the published file has some.
        lines = merges.split("\n")[1:-1]
        self._ranks = {tuple(line.split()): rank for rank, line in enumerate(lines)}
        self.unk_token_id = self._unknown = self._ids[unk_token]
        self._known_words: dict[str, list[int]] = {}
        self.vocab_size = len(self._ids)
        self.pad_token_id = self._ids[self.pad_token]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._encode(text) for text in texts]

    def parts_at(self, text: str, place: int) -> bool:
        return not any(character.isspace() for character in self.unk_token)  # words are encoded one by one

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = []
        known = self._known_words
        for number, part in enumerate(text.split(self.unk_token)):
            if number:
                ids.append(self._unknown)
            for word in WORD.findall(part):
                found = known.get(word)
                if found is None:
                    found = [self._ids.get(piece, self._unknown) for piece in self.pieces(word)]
                    if len(known) >= REMEMBERED_WORDS:
                        known.clear()
                    known[word] = found
                ids += found
        return ids

    def pieces(self, word: str) -> list[str]:
        """The pieces of one word, as the vocabulary writes them."""
        if len(word) == 1:
            return [word]
        symbols = merge([*word[:-1], word[-1] + END], self._ranks)
        return [symbol + GOES_ON for symbol in symbols[:-1]] + [symbols[-1].removesuffix(END)]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[Span]]:
        ids: list[int] = []
        spans: list[Span] = []
        place = 0
        for number, part in enumerate(text.split(self.unk_token)):
            if number:
                ids.append(self._unknown)
                spans.append((place - len(self.unk_token), place))
            for match in WORD.finditer(part):
                pieces, start = self.pieces(match.group()), place + match.start()
                for piece in pieces:
                    last = len(spans) and piece is pieces[-1]
                    length = len(piece) if last or len(pieces) == 1 else len(piece) - len(GOES_ON)
                    ids.append(self._ids.get(piece, self._unknown))
                    spans.append((start, start + length))
                    start += length
            place += len(part) + len(self.unk_token)
        return ids, spans

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Decode ids: words separated by one space, stripped. An id outside the vocabulary is <unk>."""
        pieces = [self._pieces.get(index, self.unk_token) for index in map(int, ids)]
        if skip_special_tokens:
            pieces = [piece for piece in pieces if piece not in (self.unk_token, self.pad_token)]
        return " ".join(pieces).replace(f"{GOES_ON} ", "").strip()

    def readable(self, ids: Sequence[int]) -> str:
        """Decode without a blank at the start of a line or ``@@`` after an unfinished word."""
        return self.decode(ids).removesuffix(GOES_ON).replace("\n ", "\n").strip()

    def control_code(self, code: str) -> int:
        """The id of a control code. Raises ValueError if it is not one whole word of the vocabulary."""
        ids = self.encode(code)
        if len(ids) != 1 or ids[0] == self._unknown:
            pieces = " ".join(self.pieces(code)) if code.strip() else "nothing"
            raise ValueError(f"{code!r} is no control code: it is not one token of the vocabulary ({pieces})")
        return ids[0]

    def save(self, folder: str | os.PathLike, max_length: int | None = None) -> None:
        write_file(folder, VOCAB_FILE, self.vocab)
        write_file(folder, MERGES_FILE, self.merges)
        special = {"unk_token": self.unk_token, "pad_token": self.pad_token}
        write_config(folder, {"tokenizer_class": "CTRLTokenizer", **special}, max_length)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike) -> CTRLTokenizer:
        """Load a Hugging Face folder: ``vocab.json``, ``merges.txt`` and, if there, its settings. Raises ValueError for
        settings that this port lacks, by name, or as the constructor, and OSError if a file is missing."""
        files = (read_text(Path(folder, name)) for name in (VOCAB_FILE, MERGES_FILE))
        return cls(*files, **_special_tokens(folder))

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for part in (json.dumps(self._ids, sort_keys=True), self.merges, self.unk_token):
            digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
        return digest.hexdigest()


def load_tokenizer(folder: str | os.PathLike) -> CTRLTokenizer:
    """The tokenizer of a model's folder. Raises ValueError if the folder holds no tokenizer, or one that this port
    cannot equal."""
    missing = [name for name in (VOCAB_FILE, MERGES_FILE) if not os.path.lexists(Path(folder, name))]
    if missing:
        raise ValueError(f"{folder} holds no tokenizer: there is no {' and no '.join(missing)}")
    return CTRLTokenizer.from_folder(folder)


def of_kind(kind: str, path: str | os.PathLike) -> CTRLTokenizer:
    """The tokenizer of a recipe's ``tokenizer.kind``, from its folder: all kinds are stored alike."""
    return load_tokenizer(path)


def merge(symbols: list[str], ranks: dict[tuple[str, ...], int]) -> list[str]:
    """Join neighbouring symbols, each time all pairs of the lowest rank, until no pair has a rank.

    A queue of pairs by rank makes it n log n work for a word of n characters. All occurrences of a pair are joined
    from left to right before any new pairs are considered.
    """
    following = [*range(1, len(symbols)), -1]  # the next symbol's place; -1 at the end
    before = [-1, *range(len(symbols) - 1)]
    queue = [
        (rank, place) for place, pair in enumerate(itertools.pairwise(symbols)) if (rank := ranks.get(pair)) is not None
    ]
    heapq.heapify(queue)
    alive = list(symbols)  # "" for a symbol joined to the one before
    while queue:
        rank = queue[0][0]
        made = []
        while queue and queue[0][0] == rank:
            _, place = heapq.heappop(queue)
            other = following[place]
            if not alive[place] or other < 0 or ranks.get((alive[place], alive[other])) != rank:
                continue  # one of the two has been joined with another
            alive[place] += alive[other]
            alive[other] = ""
            following[place] = following[other]
            if following[place] >= 0:
                before[following[place]] = place
            made.append(place)
        for place in made:
            for first in (before[place], place):
                second = following[first] if first >= 0 else -1
                if second >= 0 and (found := ranks.get((alive[first], alive[second]))) is not None:
                    heapq.heappush(queue, (found, first))
    return [symbol for symbol in alive if symbol]


# -- a vocabulary of one's own --------------------------------------------------------------------------------------


def check_control_code(code: str) -> None:
    """Raise ``ValueError`` if no vocabulary can hold a control code as one token."""
    if not code or WORD.fullmatch(code) is None or code != code.strip():
        raise ValueError(f"{code!r} cannot be a control code: it is not one word")


def train_bpe(
    texts: Iterable[str], vocab_size: int, folder: str | os.PathLike, control_codes: Iterable[str] = ()
) -> CTRLTokenizer:
    """Learn pieces from texts and write them to a folder. Equal texts give an equal vocabulary.

    Args:
        vocab_size: entries of ``vocab.json``: each character inside and at the end of a word, ``<unk>``, a line break,
            and one for each pair that is merged.
        control_codes: words that become one token each.

    Raises:
        ValueError: the texts do not give that many pieces, or need more for their characters alone.
    """
    words = Counter(word for text in texts for part in text.split("<unk>") for word in WORD.findall(part))
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word.strip():
            counts[character] += count
    if not counts:
        raise ValueError("cannot train pieces on these texts: they are empty")
    codes = sorted(set(control_codes))
    for code in codes:
        check_control_code(code)
    kept = {character for character, count in counts.items() if count >= LEAST_CHARACTER_COUNT}
    characters = sorted(kept | {character for code in codes for character in code} or counts)
    base = ["<unk>", "\n", *characters, *(character + GOES_ON for character in characters)]
    learned = _learn(words, characters, vocab_size)
    merges = _fitting(learned, vocab_size - len(base), codes)
    if len(base) > vocab_size or merges is None:
        needed = len(base) + len(_whole(codes, []))
        raise ValueError(f"{vocab_size} pieces are too few: the characters and control codes alone need {needed}")
    if len(base) + len(merges) < vocab_size:
        most = len(base) + len(merges)
        raise ValueError(f"cannot train {vocab_size} pieces on these texts: they give {most} at the most")
    made = [first + second for first, second in merges]
    pieces = base + [_written(symbol) for symbol in made]
    vocab = json.dumps({piece: index for index, piece in enumerate(pieces)}, ensure_ascii=False)
    lines = ["#version: 0.1", *(f"{first} {second}" for first, second in merges), ""]
    tokenizer = CTRLTokenizer(vocab, "\n".join(lines))
    Path(folder).mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder)
    return tokenizer


#: Kinds that are trained on a recipe's text.
TRAINED = {"bpe": train_bpe}


def _written(symbol: str) -> str:
    """Spell a symbol as in the vocabulary."""
    return symbol.removesuffix(END) if symbol.endswith(END) else symbol + GOES_ON


def _learn(words: Counter[str], characters: list[str], most: int) -> list[tuple[str, str]]:
    """Byte-pair encoding (Sennrich et al. 2016, section 3.2): merge the most frequent pair, time and again.

    Pairs with a line break or a rare character are skipped, as are those whose piece would be spelt like another one
    (``a@`` inside a word is written as ``a@@``). Equally frequent pairs are merged in alphabetical order.
    """
    spelt = [[*word[:-1], word[-1] + END] for word in words]
    counts = list(words.values())
    made = {*characters, *(character + END for character in characters)}
    names = {"<unk>", *map(_written, made)}
    frequency: Counter[tuple[str, str]] = Counter()
    where: dict[tuple[str, str], set[int]] = {}

    def count(index: int, sign: int) -> list[tuple[str, str]]:
        pairs = [pair for pair in itertools.pairwise(spelt[index]) if pair[0] in made and pair[1] in made]
        for pair in pairs:
            frequency[pair] += sign * counts[index]
            where.setdefault(pair, set()).add(index)
        return pairs

    for index in range(len(spelt)):
        count(index, 1)
    queue = [(-number, pair) for pair, number in frequency.items()]
    heapq.heapify(queue)
    merges: list[tuple[str, str]] = []
    while queue and len(merges) < most:
        number, pair = heapq.heappop(queue)
        if -number != frequency[pair]:  # it has become rarer since it was put there
            if frequency[pair] > 0:
                heapq.heappush(queue, (-frequency[pair], pair))
            continue
        if number > -LEAST_PAIR_COUNT:
            break
        name = _written(pair[0] + pair[1])
        if name in names:
            continue
        merges.append(pair)
        names.add(name)
        made.add(pair[0] + pair[1])
        changed: set[tuple[str, str]] = set()
        for index in where.pop(pair):
            count(index, -1)
            spelt[index] = merge(spelt[index], {pair: 0})
            changed.update(count(index, 1))
        for other in changed:
            heapq.heappush(queue, (-frequency[other], other))
    return merges


def _fitting(learned: list[tuple[str, str]], room: int, codes: list[str]) -> list[tuple[str, str]] | None:
    """As many learned merges as fit with those that make the control codes whole; None if not even these fit."""
    for count in range(min(room, len(learned)), -1, -1):
        merges = learned[:count] + _whole(codes, learned[:count])
        if len(merges) <= room:
            return merges
    return None


def _whole(codes: list[str], merges: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The further merges after which each control code is one piece."""
    ranks: dict[tuple[str, ...], int] = {pair: rank for rank, pair in enumerate(merges)}
    further: list[tuple[str, str]] = []
    for code in codes:
        pieces = merge([*code[:-1], code[-1] + END], ranks)
        while len(pieces) > 1:
            pair = (pieces[0], pieces[1])
            ranks[pair] = len(ranks)
            further.append(pair)
            pieces = merge([*code[:-1], code[-1] + END], ranks)
    return further


# -- files ----------------------------------------------------------------------------------------------------------


def _read_vocab(text: str) -> dict[str, int]:
    ids = parsed_object(text, VOCAB_FILE)
    numbers = [index for index in ids.values() if isinstance(index, int) and not isinstance(index, bool)]
    if not ids or len(numbers) < len(ids) or sorted(numbers) != list(range(len(ids))):
        raise ValueError(f"{VOCAB_FILE} is not a mapping of pieces to the ids 0, 1, 2, ...")
    return ids


def _special_tokens(folder: str | os.PathLike) -> dict[str, str]:
    """``unk_token`` and ``pad_token`` of a folder's settings. Raises ValueError for a setting that would change ids or
    texts and that this port lacks."""
    config = read_config(folder)
    named = {key: special_token(config, key) for key in ("unk_token", "pad_token")}
    tokens = {key: token for key, token in named.items() if token is not None}
    known = {"<unk>", *tokens.values()}
    added: list[object] = [entry["content"] for entry in added_tokens(config)]
    others = ("bos_token", "eos_token", "sep_token", "cls_token", "mask_token")
    added += [token for key in others if (token := special_token(config, key)) is not None]
    if more := config.get("additional_special_tokens"):
        added += more if isinstance(more, list) else [more]
    if strange := [token for token in added if not isinstance(token, str) or token not in known]:
        raise ValueError(f"{folder}/{CONFIG_FILE}: the special token {strange[0]!r} is not supported by this port")
    if config.get("clean_up_tokenization_spaces"):
        raise ValueError(f"{folder}/{CONFIG_FILE}: clean_up_tokenization_spaces is not supported by this port")
    return tokens
