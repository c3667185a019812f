"""CTRL's tokenizer, which splits words into byte-pair pieces (Keskar et al. 2019, section 3.2).

``transformers.CTRLTokenizer`` gives the same ids. A word is text between white space, plus one line break right
after it. Other white space is lost. A piece that does not end its word has the suffix ``@@``. The module needs neither
Paddle nor torch.
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

from models.files.plain import parse_object, read_text
from models.files.writing import write_file
from models.port.tokenization import (
    CONFIG_FILE,
    Span,
    Tokenizer,
    read_added_tokens,
    read_special_token,
    read_tokenizer_config,
    write_tokenizer_config,
)

VOCAB_FILE, MERGES_FILE = "vocab.json", "merges.txt"

#: Pattern of a word. The reference uses `regex`, which, unlike `re`, does not count the four separators as white space.
WORD = re.compile(r"[\S\x1c-\x1f]+\n?")
#: Suffix of the last symbol of a word in the merges.
WORD_END = "</w>"
#: Suffix of a piece that does not end its word in the vocabulary.
CONTINUES = "@@"

#: Maximum number of words whose pieces are cached. A megabyte of English has about 30,000 different words.
MAX_CACHED_WORDS = 1 << 18

#: Minimum number of occurrences of a character in the training texts; a rarer character becomes <unk>.
MIN_CHARACTER_COUNT = 5

#: Minimum number of occurrences of a pair of symbols in the training texts; a rarer pair is not merged.
MIN_PAIR_COUNT = 2


class CTRLTokenizer(Tokenizer):
    """Byte-pair pieces of words.

    The first token of a model's text should be a *control code*, a word that is one token of the vocabulary
    (:meth:`control_code`). CTRL has no padding token, so ``<unk>`` with an attention mask of 0 pads texts.

    Args:
        vocab: content of ``vocab.json``.
        merges: content of ``merges.txt``.
        unk_token: token of unknown pieces.
        pad_token: padding token; None for ``unk_token``.

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
        # As in the reference, the first and the last line are skipped, and any white space separates two pieces. The
        # published file has some pieces with a no-break space, and their merges are lost.
        lines = merges.split("\n")[1:-1]
        self._ranks = {tuple(line.split()): rank for rank, line in enumerate(lines)}
        self.unk_token_id = self._unk_id = self._ids[unk_token]
        self._cached_ids: dict[str, list[int]] = {}
        self.vocab_size = len(self._ids)
        self.pad_token_id = self._ids[self.pad_token]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text."""
        return [self._encode(text) for text in texts]

    def is_safe_cut(self, text: str, position: int) -> bool:
        """Return whether a cut before a space changes no ids before it.

        Each word is encoded in isolation, so this holds unless the unknown token contains a space.

        Args:
            text: the whole text.
            position: index of the space.
        """
        return not any(character.isspace() for character in self.unk_token)  # each word is encoded in isolation

    def _encode(self, text: str) -> list[int]:
        """Return the ids of one text."""
        ids: list[int] = []
        cache = self._cached_ids
        for number, part in enumerate(text.split(self.unk_token)):
            if number:
                ids.append(self._unk_id)
            for word in WORD.findall(part):
                word_ids = cache.get(word)
                if word_ids is None:
                    word_ids = [self._ids.get(piece, self._unk_id) for piece in self.split_word(word)]
                    if len(cache) >= MAX_CACHED_WORDS:
                        cache.clear()
                    cache[word] = word_ids
                ids += word_ids
        return ids

    def split_word(self, word: str) -> list[str]:
        """Return the pieces of one word, spelled as in the vocabulary."""
        if len(word) == 1:
            return [word]
        symbols = merge_symbols(_split_characters(word), self._ranks)
        return [symbol + CONTINUES for symbol in symbols[:-1]] + [symbols[-1].removesuffix(WORD_END)]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the token ids of a text, and the character span (start, end) of each token in the text."""
        ids: list[int] = []
        spans: list[Span] = []
        part_start = 0
        for number, part in enumerate(text.split(self.unk_token)):
            if number:
                ids.append(self._unk_id)
                spans.append((part_start - len(self.unk_token), part_start))
            for match in WORD.finditer(part):
                pieces, start = self.split_word(match.group()), part_start + match.start()
                for piece in pieces:
                    is_last = len(spans) and piece is pieces[-1]
                    length = len(piece) if is_last or len(pieces) == 1 else len(piece) - len(CONTINUES)
                    ids.append(self._ids.get(piece, self._unk_id))
                    spans.append((start, start + length))
                    start += length
            part_start += len(part) + len(self.unk_token)
        return ids, spans

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Return the text of ids, with one space between words. An id outside of the vocabulary becomes <unk>."""
        pieces = [self._pieces.get(index, self.unk_token) for index in map(int, ids)]
        if skip_special_tokens:
            pieces = [piece for piece in pieces if piece not in (self.unk_token, self.pad_token)]
        return " ".join(pieces).replace(f"{CONTINUES} ", "").strip()

    def decode_readable(self, ids: Sequence[int]) -> str:
        """Return the text of ids without spaces at the start of lines and without ``@@`` after an unfinished word."""
        return self.decode(ids).removesuffix(CONTINUES).replace("\n ", "\n").strip()

    def control_code(self, code: str) -> int:
        """Return the id of a control code.

        Raises:
            ValueError: the code is not a single token of the vocabulary.
        """
        ids = self.encode(code)
        if len(ids) != 1 or ids[0] == self._unk_id:
            pieces = " ".join(self.split_word(code)) if code.strip() else "nothing"
            raise ValueError(f"{code!r} is no control code: it is not one token of the vocabulary ({pieces})")
        return ids[0]

    def save(self, folder: str | os.PathLike, max_length: int | None = None) -> None:
        """Write the vocabulary, the merges and the tokenizer's configuration as transformers reads them.

        Args:
            folder: folder for the files.
            max_length: maximum number of tokens of a text, for the configuration; None for no maximum.
        """
        write_file(folder, VOCAB_FILE, self.vocab)
        write_file(folder, MERGES_FILE, self.merges)
        special_tokens = {"unk_token": self.unk_token, "pad_token": self.pad_token}
        write_tokenizer_config(folder, {"tokenizer_class": "CTRLTokenizer", **special_tokens}, max_length)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike) -> CTRLTokenizer:
        """Load the tokenizer of a Hugging Face folder: ``vocab.json``, ``merges.txt`` and optional settings.

        Raises:
            ValueError: a setting is not supported, or the vocabulary is invalid.
            OSError: a file is missing.
        """
        vocab, merges = (read_text(Path(folder, name)) for name in (VOCAB_FILE, MERGES_FILE))
        return cls(vocab, merges, **_read_special_tokens(folder))

    def fingerprint(self) -> str:
        """Return a SHA-256 digest of all data that decides about the tokens, in hexadecimal."""
        digest = hashlib.sha256()
        for part in (json.dumps(self._ids, sort_keys=True), self.merges, self.unk_token):
            digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
        return digest.hexdigest()


def load_tokenizer(folder: str | os.PathLike) -> CTRLTokenizer:
    """Load the tokenizer of a model's folder.

    Raises:
        ValueError: the folder has no tokenizer, or a tokenizer that is not supported.
    """
    missing = [name for name in (VOCAB_FILE, MERGES_FILE) if not os.path.lexists(Path(folder, name))]
    if missing:
        raise ValueError(f"{folder} holds no tokenizer: there is no {' and no '.join(missing)}")
    return CTRLTokenizer.from_folder(folder)


def load_tokenizer_of_kind(kind: str, folder: str | os.PathLike) -> CTRLTokenizer:
    """Load the tokenizer of a recipe's ``tokenizer.kind`` from a folder; all kinds have the same files."""
    return load_tokenizer(folder)


def merge_symbols(symbols: list[str], ranks: dict[tuple[str, ...], int]) -> list[str]:
    """Merge neighboring symbols in the order of their ranks, until no pair of neighbors has a rank.

    All occurrences of a pair are merged from left to right before any new pairs are considered. The queue of pairs
    limits the work for a word of n characters to n log n.

    Args:
        symbols: symbols of a word, such as ``["c", "a", "t</w>"]``.
        ranks: rank of each pair of symbols; the lowest rank is merged first.
    """
    next_index = [*range(1, len(symbols)), -1]  # -1 at the end of the word
    previous_index = [-1, *range(len(symbols) - 1)]
    queue = [
        (rank, index) for index, pair in enumerate(itertools.pairwise(symbols)) if (rank := ranks.get(pair)) is not None
    ]
    heapq.heapify(queue)
    merged_symbols = list(symbols)  # "" for a symbol that was merged into the previous symbol
    while queue:
        rank = queue[0][0]
        changed_indices = []
        while queue and queue[0][0] == rank:
            _, first = heapq.heappop(queue)
            second = next_index[first]
            if not merged_symbols[first] or second < 0:
                continue  # merged into another symbol since the pair was queued
            if ranks.get((merged_symbols[first], merged_symbols[second])) != rank:
                continue
            merged_symbols[first] += merged_symbols[second]
            merged_symbols[second] = ""
            next_index[first] = next_index[second]
            if next_index[first] >= 0:
                previous_index[next_index[first]] = first
            changed_indices.append(first)
        for index in changed_indices:
            for first in (previous_index[index], index):
                second = next_index[first] if first >= 0 else -1
                if second < 0:
                    continue
                if (pair_rank := ranks.get((merged_symbols[first], merged_symbols[second]))) is not None:
                    heapq.heappush(queue, (pair_rank, first))
    return [symbol for symbol in merged_symbols if symbol]


def _split_characters(word: str) -> list[str]:
    """Return the characters of a word, the last with the suffix :data:`WORD_END`."""
    return [*word[:-1], word[-1] + WORD_END]


# -- training a vocabulary ------------------------------------------------------------------------------------------


def check_control_code(code: str) -> None:
    """Check that a vocabulary can have a control code as one token. Raise ``ValueError`` otherwise."""
    if not code or WORD.fullmatch(code) is None or code != code.strip():
        raise ValueError(f"{code!r} cannot be a control code: it is not one word")


def train_bpe(
    texts: Iterable[str], vocab_size: int, folder: str | os.PathLike, control_codes: Iterable[str] = ()
) -> CTRLTokenizer:
    """Train a byte-pair tokenizer on texts and write it to a folder. Equal texts give an equal vocabulary.

    Args:
        texts: training texts.
        vocab_size: number of entries of ``vocab.json``: each character inside and at the end of a word, ``<unk>``, a
            line break, and one piece for each merge.
        folder: folder of the tokenizer, created if it does not exist.
        control_codes: words that become one token each.

    Raises:
        ValueError: the texts have too few pairs for this size, or too many characters.
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
    frequent_characters = {character for character, count in counts.items() if count >= MIN_CHARACTER_COUNT}
    characters = sorted(frequent_characters | {character for code in codes for character in code} or counts)
    base = ["<unk>", "\n", *characters, *(character + CONTINUES for character in characters)]
    learned_merges = _learn_merges(words, characters, vocab_size)
    merges = _limit_merges(learned_merges, vocab_size - len(base), codes)
    if len(base) > vocab_size or merges is None:
        min_size = len(base) + len(_merges_for_codes(codes, []))
        raise ValueError(f"{vocab_size} pieces are too few: the characters and control codes alone need {min_size}")
    if len(base) + len(merges) < vocab_size:
        max_size = len(base) + len(merges)
        raise ValueError(f"cannot train {vocab_size} pieces on these texts: they give {max_size} at the most")
    pieces = base + [_spell_symbol(first + second) for first, second in merges]
    vocab = json.dumps({piece: index for index, piece in enumerate(pieces)}, ensure_ascii=False)
    lines = ["#version: 0.1", *(f"{first} {second}" for first, second in merges), ""]
    tokenizer = CTRLTokenizer(vocab, "\n".join(lines))
    Path(folder).mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder)
    return tokenizer


#: Function that trains the tokenizer of each kind on a recipe's texts.
TRAINERS = {"bpe": train_bpe}


def _spell_symbol(symbol: str) -> str:
    """Return the piece of the vocabulary for a symbol: ``t</w>`` -> ``t``, ``ca`` -> ``ca@@``."""
    return symbol.removesuffix(WORD_END) if symbol.endswith(WORD_END) else symbol + CONTINUES


def _learn_merges(unique_words: Counter[str], characters: list[str], max_merges: int) -> list[tuple[str, str]]:
    """Return the pairs that byte-pair encoding merges, the most frequent first (Sennrich et al. 2016, section 3.2).

    Pairs with a line break or a rare character are skipped. A pair whose piece would be spelled like another piece is
    skipped, too (``a@`` inside a word is written as ``a@@``). Equally frequent pairs are merged in alphabetical order.

    Args:
        unique_words: number of occurrences of each word.
        characters: characters that may be merged.
        max_merges: maximum number of merges.
    """
    words_as_symbols = [_split_characters(word) for word in unique_words]
    word_counts = list(unique_words.values())
    symbols = {*characters, *(character + WORD_END for character in characters)}
    pieces = {"<unk>", *map(_spell_symbol, symbols)}
    pair_counts: Counter[tuple[str, str]] = Counter()
    words_of_pair: dict[tuple[str, str], set[int]] = {}

    def count_pairs(index: int, sign: int) -> list[tuple[str, str]]:
        """Add (or, with sign -1, subtract) the pairs of a word, and return them."""
        neighbors = itertools.pairwise(words_as_symbols[index])
        pairs = [pair for pair in neighbors if pair[0] in symbols and pair[1] in symbols]
        for pair in pairs:
            pair_counts[pair] += sign * word_counts[index]
            words_of_pair.setdefault(pair, set()).add(index)
        return pairs

    for index in range(len(words_as_symbols)):
        count_pairs(index, 1)
    queue = [(-count, pair) for pair, count in pair_counts.items()]
    heapq.heapify(queue)
    merges: list[tuple[str, str]] = []
    while queue and len(merges) < max_merges:
        negative_count, pair = heapq.heappop(queue)
        if -negative_count != pair_counts[pair]:  # the pair has become rarer since it was queued
            if pair_counts[pair] > 0:
                heapq.heappush(queue, (-pair_counts[pair], pair))
            continue
        if negative_count > -MIN_PAIR_COUNT:
            break
        piece = _spell_symbol(pair[0] + pair[1])
        if piece in pieces:
            continue
        merges.append(pair)
        pieces.add(piece)
        symbols.add(pair[0] + pair[1])
        new_pairs: set[tuple[str, str]] = set()
        for index in words_of_pair.pop(pair):
            count_pairs(index, -1)
            words_as_symbols[index] = merge_symbols(words_as_symbols[index], {pair: 0})
            new_pairs.update(count_pairs(index, 1))
        for new_pair in new_pairs:
            heapq.heappush(queue, (-pair_counts[new_pair], new_pair))
    return merges


def _limit_merges(merges: list[tuple[str, str]], max_merges: int, codes: list[str]) -> list[tuple[str, str]] | None:
    """Return the longest prefix of the merges that fits together with the merges of the control codes.

    Args:
        merges: pairs of pieces to merge, in the order of learning.
        max_merges: maximum number of merges of the result.
        codes: control codes; each code must be one token.

    Returns:
        At most ``max_merges`` merges; None if the merges of the control codes alone are more.
    """
    for count in range(min(max_merges, len(merges)), -1, -1):
        limited_merges = merges[:count] + _merges_for_codes(codes, merges[:count])
        if len(limited_merges) <= max_merges:
            return limited_merges
    return None


def _merges_for_codes(codes: list[str], merges: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the additional merges after which each control code is one piece."""
    ranks: dict[tuple[str, ...], int] = {pair: rank for rank, pair in enumerate(merges)}
    additional_merges: list[tuple[str, str]] = []
    for code in codes:
        symbols = merge_symbols(_split_characters(code), ranks)
        while len(symbols) > 1:
            pair = (symbols[0], symbols[1])
            ranks[pair] = len(ranks)
            additional_merges.append(pair)
            symbols = merge_symbols(_split_characters(code), ranks)
    return additional_merges


# -- files ----------------------------------------------------------------------------------------------------------


def _read_vocab(vocab: str) -> dict[str, int]:
    """Return the id of each piece from the content of ``vocab.json``."""
    ids = parse_object(vocab, VOCAB_FILE)
    integers = [index for index in ids.values() if isinstance(index, int) and not isinstance(index, bool)]
    if not ids or len(integers) < len(ids) or sorted(integers) != list(range(len(ids))):
        raise ValueError(f"{VOCAB_FILE} is not a mapping of pieces to the ids 0, 1, 2, ...")
    return ids


def _read_special_tokens(folder: str | os.PathLike) -> dict[str, str]:
    """Return ``unk_token`` and ``pad_token`` of a folder's settings, if they are set.

    Raises:
        ValueError: a setting that is not supported would change ids or texts.
    """
    config = read_tokenizer_config(folder)
    optional_tokens = {key: read_special_token(config, key) for key in ("unk_token", "pad_token")}
    tokens = {key: token for key, token in optional_tokens.items() if token is not None}
    supported_tokens = {"<unk>", *tokens.values()}
    other_tokens: list[object] = [entry["content"] for entry in read_added_tokens(config)]
    other_keys = ("bos_token", "eos_token", "sep_token", "cls_token", "mask_token")
    other_tokens += [token for key in other_keys if (token := read_special_token(config, key)) is not None]
    if additional_tokens := config.get("additional_special_tokens"):
        other_tokens += additional_tokens if isinstance(additional_tokens, list) else [additional_tokens]
    if strange_tokens := [
        token for token in other_tokens if not isinstance(token, str) or token not in supported_tokens
    ]:
        raise ValueError(
            f"{folder}/{CONFIG_FILE}: the special token {strange_tokens[0]!r} is not supported by this port"
        )
    if config.get("clean_up_tokenization_spaces"):
        raise ValueError(f"{folder}/{CONFIG_FILE}: clean_up_tokenization_spaces is not supported by this port")
    return tokens
