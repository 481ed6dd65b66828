"""guidellm: a benchmark of a few streamed chats, one after another."""

import json
import pathlib
import subprocess
import sys

url, checkpoint = sys.argv[1:3]
lines = [
    json.dumps({"prompt": f"Name {count} colours.", "output_tokens_count": 8})
    for count in range(2, 6)
]
pathlib.Path("asked.jsonl").write_text("\n".join(lines))
subprocess.run(
    [
        *("guidellm", "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target={url},model=smollm2"),
        *("--profile", "kind=synchronous"),
        *("--constraint", "kind=max_requests,count=3"),
        *("--tokenizer", f"kind=huggingface_auto,model={checkpoint}"),
        *("--data", "kind=json_file,path=asked.jsonl"),
        *("--output", "kind=json,path=found.json"),
    ],
    check=True,
)
(benchmark,) = json.loads(pathlib.Path("found.json").read_text())["benchmarks"]
print(benchmark.keys())
print(json.dumps(benchmark["metrics"]["request_totals"]))
