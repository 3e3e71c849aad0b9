#!/usr/bin/env python3
"""case_table.py - writes lib/data/jinja_case.h: what Python's str methods know about characters and
utf8proc does not say. Names are of Python's tests and mappings."""
import sys
import unicodedata as u

ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(name, what, test):
    r = []
    for c in filter(test, ALL):
        if r and r[-1][1] == c - 1:
            r[-1][1] = c
        else:
            r.append([c, c])
    out = f"/* {what} */\nstatic const struct tw_jrange {name}[] = {{"
    line = ""
    for a, b in r:
        item = f" {{ 0x{a:X}, 0x{b:X} }},"
        if len(line) + len(item) > 94:
            out += "\n   " + line
            line = ""
        line += item
    return out + "\n   " + line + "\n};\n"


def text(s):
    return "".join(f"\\x{b:02X}" for b in s.encode())


with open("lib/data/jinja_case.h", "w") as f:
    print("/* jinja_case.h - characters as Python's str methods see them, made by tests/oracle/case_table.py\n"
          f" * (Unicode {u.unidata_version}): what utf8proc does not say. Only for jinja_case.c. */\n"
          "#ifndef TW_JINJA_CASE_H\n#define TW_JINJA_CASE_H\n#include <stdint.h>\n\n"
          "struct tw_jrange {\n    uint32_t first, last;\n};\n", file=f)
    print(ranges("other_lower", "Lower case, though no Ll.",
                 lambda c: chr(c).islower() and u.category(chr(c)) != "Ll"), file=f)
    print(ranges("other_upper", "Upper case, though no Lu.",
                 lambda c: chr(c).isupper() and u.category(chr(c)) != "Lu"), file=f)
    print(ranges("other_digit", "isdigit(), though no Nd.",
                 lambda c: chr(c).isdigit() and u.category(chr(c)) != "Nd"), file=f)
    print(ranges("other_numeric", "isnumeric(), though no N*.",
                 lambda c: chr(c).isnumeric() and u.category(chr(c))[0] != "N"), file=f)
    print("/* Characters that become more than one, or a title case of their own. */\n"
          "static const struct {\n    uint32_t c;\n    const char *upper, *title;\n} special[] = {", file=f)
    for c in ALL:
        s = chr(c)
        if len(s.upper()) > 1 or len(s.title()) > 1 or s.title() != s.upper():
            print(f'    {{ 0x{c:X}, "{text(s.upper())}", "{text(s.title())}" }},', file=f)
    print("};\n#endif", file=f)
