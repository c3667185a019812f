"""Texts on which tokenizers differ when they differ at all."""

from __future__ import annotations

#: Beside the run's own texts, both tokenizers must agree on these.
ADVERSARIAL = (
    "",
    " ",
    "  two  spaces, and more   ",
    "\ttabs\tand\r\nline\nbreaks\u2028\u2029",
    "a\u0301 e\u0308 n\u0303 \u1e9b\u0323 combining marks, decomposed",
    "\u00e1 \u00eb \u00f1 composed",
    "\ufb01 \u2460 \u00bd \u212b \uff21\uff22 compatibility forms",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1eb\U0001f1ee \U0001f44d\U0001f3fd emoji",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 right to \u202eleft\u202c",
    "\u4f60\u597d\uff0c\u4e16\u754c \u3053\u3093\u306b\u3061\u306f \uc548\ub155 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\x00\x01\x07\x1b[0m\x7f control characters",
    "\u200b\u200c\u2060\ufeff zero width",
    "x" * 2000,
    "Donaudampfschifffahrtsgesellschaftskapit\u00e4n" * 10,
    "</s> <unk> <pad> <s> written out, text</s>text <unk><unk> </s>",
    "\u2581underline of SentencePiece \u2581\u2581",
    "1234567890 3.14159 1,000,000 0x1F",
    "UPPER lower MiXeD \u00df \u1e9e \u0130 \u0131",
    "!?.,;:-_()[]{}<>/\\|@#$%^&*+=~`'\"",
    "\U00010348 \U000e0041 \U0010ffff rare planes",
    "a\ud800b lone surrogate",
)
