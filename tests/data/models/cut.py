#!/usr/bin/env python3
"""Copies folders of answers here with the logits of a few rows only: cut.py DIR.. [--out OUT]"""
import json, os, shutil, sys
import numpy as np
from safetensors.numpy import load_file, save_file

ROWS = [0, 1, 62, 63, 64, 149, 150, 213, 299]
args = sys.argv[1:]
out = os.path.dirname(os.path.abspath(__file__))
if '--out' in args:
    at = args.index('--out')
    out = args[at + 1]
    del args[at:at + 2]
for src in args:
    dst = os.path.join(out, os.path.basename(src.rstrip('/')))
    shutil.copytree(src, dst, dirs_exist_ok=True, copy_function=shutil.copyfile)
    for path, _, names in os.walk(dst):
        os.chmod(path, 0o755)
        for n in names:
            os.chmod(os.path.join(path, n), 0o644)
    at = os.path.join(dst, 'expected.safetensors')
    t = load_file(at)
    z = t.pop('logits')
    t['logits_rows'] = np.array(ROWS, np.int32)
    t['logits_at_rows'] = np.ascontiguousarray(z.reshape(-1, z.shape[-1])[ROWS])
    save_file(t, at)
