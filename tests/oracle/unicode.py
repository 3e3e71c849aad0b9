#!/usr/bin/env python3
"""unicode.py - writes tests/data/tokenizers-unicode: tokenizers of bytes alone (and of pairs, which show where
words are cut) with one normalizer or pre-tokenizer each, and what the library makes of characters on which
Unicode's versions differ. Needs tokenizers."""
import json
import os
import random
import unicodedata

from tokenizers import Regex, Tokenizer, models, normalizers as N, pre_tokenizers as P

OUT = "tests/data/tokenizers-unicode"
DEFAULT = P.ByteLevel(add_prefix_space=False, use_regex=False)


def split(pattern):
    return P.Sequence([P.Split(Regex(pattern), "isolated"), DEFAULT])


ALL = [c for c in range(0x80, 0x110000) if not 0xD800 <= c < 0xE000]
STRIP = N.Sequence([N.NFKD(), N.StripAccents(), N.Lowercase()])
CASES = {"nfd": (N.NFD(), DEFAULT), "nfkc": (N.NFKC(), DEFAULT), "accents": (STRIP, DEFAULT),
         "punct": (None, P.Sequence([P.Punctuation(), DEFAULT])), "han": (None, split(r"\p{Han}+"))}


def odd():
    """Characters whose treatment is not what Python's tables say, and some beside them."""
    r = random.Random(1)
    hits = []
    late = P.Punctuation()
    for c in ALL:
        s, mark = chr(c), unicodedata.category(chr(c))[0] == "M"
        if (N.NFKD().normalize_str("a" + s) != unicodedata.normalize("NFKD", "a" + s)
                or (mark and N.StripAccents().normalize_str("a" + s) != "a") or N.Lowercase().normalize_str(s) != s.lower()
                or (unicodedata.category(s)[0] == "P") != (len(late.pre_tokenize_str("a" + s)) == 2)):
            hits.append(c)
    shared = [0x3001, 0x3003, 0x300C, 0x3012, 0x30FB, 0x303C, 0xB2, 0xBC, 0x2160, 0x24B6, 0x4E00, 0x3005, 0x3007]
    return r.sample(hits, min(160, len(hits))) + shared + [r.choice(ALL) for _ in range(20)]


def main():
    r = random.Random(2)
    chars = [c for c in odd() if unicodedata.category(chr(c)) != "Cn" or c < 0x11000]
    lines = [f"a{chr(c)}1{chr(c)} {chr(c)}!{chr(c)}\u0301b" for c in chars]
    lines += ["".join(chr(r.choice(chars)) for _ in range(r.randint(2, 6))) for _ in range(40)]
    os.makedirs(OUT, exist_ok=True)
    with open(f"{OUT}/corpus.jsonl", "w") as f:
        f.writelines(json.dumps(s) + "\n" for s in lines)
    letters = sorted(P.ByteLevel.alphabet())
    for name, (norm, pre) in CASES.items():
        vocab = {c: i for i, c in enumerate(letters)}
        pairs = [] if norm else [(a, b) for a in "ab1!ãæÃÂðĠ" for b in letters]
        for a, b in pairs:
            vocab.setdefault(a + b, len(vocab))
        t = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
        if norm:
            t.normalizer = norm
        t.pre_tokenizer = pre
        os.makedirs(f"{OUT}/{name}", exist_ok=True)
        t.save(f"{OUT}/{name}/tokenizer.json", pretty=False)
        with open(f"{OUT}/{name}/expected.jsonl", "w") as f:
            for s in lines:
                ids = t.encode(s, add_special_tokens=False).ids
                print(json.dumps({"ids": ids, "decoded": t.decode(ids, skip_special_tokens=False)}), file=f)


main()
