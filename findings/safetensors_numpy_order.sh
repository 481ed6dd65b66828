#!/usr/bin/env bash
# Expected: `safetensors.numpy.save_file` writes an array's values whatever its order in memory (a
#   transposed weight, a column of a matrix), or refuses what is not contiguous, as that of torch does.
# Happens: it writes the bytes as they lie behind the array's address: a transposed matrix is read back
#   with its values elsewhere, a strided one with others' values, no error. Version 0.7.0 was right.
# Versions: safetensors 0.8.0 (0.7.0 is right), numpy 2.4.6
# Source: safetensors/numpy.py, `_flatten`: `data_ptr=tensor.ctypes.data`
# Guess: missed ("right")
. "$(dirname "$0")/lib.sh"
seen=
for version in 0.7.0 0.8.0; do
  packages safetensors==$version numpy==2.4.6
  seen="$seen $(python <<'PY'
import pathlib, sys, tempfile
import numpy as np, safetensors
from safetensors.numpy import load_file, save_file

t = np.arange(6, dtype=np.float32).reshape(2, 3)
given = {"plain": t, "transposed": t.T, "column-major": np.asfortranarray(t), "strided": t[:, ::2]}
path = pathlib.Path(tempfile.mkdtemp()) / "m.safetensors"
save_file(given, path)
read = load_file(path)
for name, array in given.items():
    print(f"{safetensors.__version__}, {name}: {array.tolist()} is read as {read[name].tolist()}", file=sys.stderr)
print("".join("ny"[np.array_equal(read[name], array)] for name, array in given.items()))
PY
)"
done
[ "$seen" = " yyyy ynnn" ]
