"""genai-perf: a profile of a few streamed chats."""

import json
import os
import pathlib
import subprocess
import sys
import sysconfig

url, checkpoint, libraries = sys.argv[1:]
# Its perf_analyzer is a program of a wheel of Triton's client, which needs two libraries: CUDA's,
# from a wheel, and libb64, which a Triton server has.
own = pathlib.Path("lib").resolve()
own.mkdir()
for library in pathlib.Path(libraries).glob("libb64*.so.0d"):
    (own / "libb64.so.0d").symlink_to(library)
cuda = pathlib.Path(sysconfig.get_path("purelib"), "nvidia", "cuda_runtime", "lib")
os.environ["LD_LIBRARY_PATH"] = f"{own}:{cuda}"
if subprocess.run(["perf_analyzer", "--version"], check=False).returncode:
    print("perf_analyzer does not start here")
    sys.exit(77)
subprocess.run(
    [
        *("genai-perf", "profile", "--model", "smollm2", "--tokenizer", checkpoint),
        *("--endpoint-type", "chat", "--streaming", "--url", url),
        *("--isl", "20", "--osl", "8", "--request-count", "3", "--num-dataset-entries", "3"),
        *("--artifact-dir", "found"),
    ],
    check=True,
)
(profile,) = pathlib.Path("found").rglob("profile_export_genai_perf.json")
found = json.loads(profile.read_text())
assert found["request_count"]["avg"] == 3
assert found["time_to_first_token"]["avg"] > 0
print(found["request_throughput"])
