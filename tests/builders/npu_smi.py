"""A program `npu-smi` that prints what it is given, in the formats of the real one's sources."""

import os
from pathlib import Path

MAPPING = """\
\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name
\t4                              0                              0                              Ascend 910B3
\t4                              1                              -                              Mcu
\t5                              0                              1                              Ascend 910
\t5                              1                              2                              Ascend 910
"""
TEMPERATURE = """\
\tNPU ID                         : 5
\tNPU Temperature (C)            : 39
\tChip ID                        : 0

\tLM75A_TE (C)                   : 36
\tChip Name                      : MCU
"""
ECC = """\
\tNPU ID                                   : 5
\tDDR Single Bit Error Count               : 1
\tDDR Double Bit Error Count               : 0
\tHBM Single Bit Error Count               : 3
\tHBM Double Bit Error Count               : 2
\tHBM Single Bit Aggregate Total Err Cnt   : 70
\tHBM Double Bit Aggregate Total Err Cnt   : 71
\tHBM Double Bit Isolated Pages Count      : 72
\tChip ID                                  : 1
"""


def fake_npu_smi(folder: Path, **printed: str) -> dict[str, str]:
    """Write one into a folder, and return the PATH with it.

    It prints `mapping` for `info -m`, and the text of that name for `info -t NAME`; its arguments
    go into the file `asked`, one line for each call.
    """
    folder.mkdir(exist_ok=True)
    for name, text in printed.items():
        (folder / name).write_text(text)
    script = folder / "npu-smi"
    script.write_text(
        f'#!/bin/sh\necho "$*" >> {folder}/asked\n'
        f'case "$2" in -m) cat {folder}/mapping ;; *) cat {folder}/"$3" ;; esac\n'
    )
    script.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
