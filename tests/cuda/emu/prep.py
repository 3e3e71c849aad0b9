#!/usr/bin/env python3
"""prep.py SRC DST: kernels with what the emulator has instead taken out, and launches as calls of it"""
import os
import re
import sys

OURS = """bar_at bar_init bar_arrive bar_expect bar_wait bar_made bar_copy bar_copy_kept bar_group cluster_map
    cluster_arrive cluster_wait step_next step_after step_fetch few_mma ex2 copy16 copy4 copy_done mma""".split()


def closing(s, i):
    """Where the bracket that opens at I closes; backwards from a '>'."""
    step, depth = (-1, 0) if s[i] == '>' else (1, 0)
    while True:
        depth += (s[i] in '(<[{' if s[i] in '()[]{}' or step < 0 else 0)
        depth -= (s[i] in ')>]}' if s[i] in '()[]{}' or step < 0 else 0)
        if depth == 0:
            return i
        i += step


def split(s):
    parts, depth = [''], 0
    for c in s:
        depth += (c in '([{') - (c in ')]}')
        if c == ',' and not depth:
            parts.append('')
        else:
            parts[-1] += c
    return parts


def launches(s):
    while '<<<' in s:
        k = s.index('<<<')
        e = s.index('>>>', k)
        j = k - 1
        if s[j] == '>':
            j = closing(s, j) - 1
        while re.match(r'\w', s[j]):
            j -= 1
        end = closing(s, e + 3) + 1
        to = (split(s[k + 3:e]) + ['0', '0'])[:3]
        s = '%semu_go{ dim3(%s), (unsigned)(%s), (size_t)(%s) } << [=]() { %s%s; }%s' % (s[:j + 1], *to,
            s[j + 1:k], s[e + 3:end], s[end:])
    return s


def prep(s):
    for n in OURS:
        s = re.sub(r'(template <class T> )?static __device__ __forceinline__ \w+ \*?' + n + r'\([^{]*\)\n\{.*?\n\}\n',
                   '', s, flags=re.S)
    s = re.sub(r'static __device__ __forceinline__ uint4 ld_once\(.*?\n\}\n',
               'static inline uint4 ld_once(const bf16 *p) { return *(const uint4 *)p; }\n', s, flags=re.S)
    s = re.sub(r'extern __shared__ (?:__align__\(\d+\) )?((?:unsigned )?\w+) (\w+)\[\];', r'\1 *\2 = (\1 *)emu_mem();', s)
    s = re.sub(r'asm volatile\("cp.async.wait_group %0;" ::"n"\((.*?)\)\);', r'emu_cp_wait(\1);', s)
    s = re.sub(r'asm volatile\("ldmatrix.sync.aligned.m8n8.x(\d)(.trans)?.shared.b16.*?;"\s*:.*?\);',
               lambda m: 'emu_ldsm(&f[0], a, %s, %s);' % (m[1], 'true' if m[2] else 'false'), s, flags=re.S)
    return launches(s)


os.makedirs(sys.argv[2], exist_ok=True)
for f in os.listdir(sys.argv[1]):
    with open(os.path.join(sys.argv[1], f)) as src, open(os.path.join(sys.argv[2], f), 'w') as dst:
        dst.write(prep(src.read()))
