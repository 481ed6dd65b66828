#!/usr/bin/env bash
# Expected: `pip install torch_npu==2.7.1` on x86 brings what it needs, as 2.14.0 does.
# Happens: its wheel asks for torch==2.7.1+cpu, a version that PyPI does not have, so that pip refuses, and
#   names neither numpy nor pyyaml, which it imports. 2.14.0 asks for torch==2.14.0.*, numpy and pyyaml.
# Versions: torch_npu 2.7.1, 2.14.0 (wheels for CPython 3.11, x86_64)
# Source: METADATA of the wheels, `import` lines of their sources
# Guess: missed ("both pin torch as ==2.7.1.* and ==2.14.0.*")
. "$(dirname "$0")/lib.sh"
packages packaging==26.4
for version in 2.7.1 2.14.0; do
  "$venv/bin/pip" download --quiet --no-deps --only-binary :all: --python-version 3.11 \
    --platform manylinux_2_28_x86_64 -d "$FINDINGS_FOLDER" torch_npu==$version 2>/dev/null || exit 77
done
export FINDINGS_FOLDER
python <<'PY'
import os, pathlib, zipfile

seen = {}
for path in sorted(pathlib.Path(os.environ["FINDINGS_FOLDER"]).glob("torch_npu-2.*.whl")):
    with zipfile.ZipFile(path) as wheel:
        metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        lines = wheel.read(metadata).decode().splitlines()
        texts = [wheel.read(name).decode() for name in wheel.namelist() if name.endswith(".py")]
    wanted = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist")]
    imports = {name for name in ("numpy", "yaml") if any(f"\nimport {name}" in text for text in texts)}
    seen[path.name.split("-")[1]] = wanted, imports
    print(path.name, "asks for", wanted, "and imports", sorted(imports))
raise SystemExit(not (seen["2.7.1"] == (["torch==2.7.1+cpu"], {"numpy", "yaml"})
                      and seen["2.14.0"][0] == ["torch==2.14.0.*", "numpy", "pyyaml"]))
PY
