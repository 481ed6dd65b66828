"""The seam needs numpy alone: engines of text generation are tested without torch."""

import subprocess
import sys


def test_the_seam_imports_neither_torch_nor_transformers():
    """The host's stub imports it, where torch would take seconds."""
    code = (
        "import sys, ge_text.models.base; "
        "sys.exit(bool({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
