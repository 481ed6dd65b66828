"""lm_eval: a task of its own that generates, over chats and over completions."""

import json
import pathlib
import sys

import lm_eval

url, checkpoint = sys.argv[1:3]
rows = [{"question": f"Is {name} a colour?", "answer": "yes"} for name in ("red", "blue", "green")]
pathlib.Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
task = {
    "task": "colours",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}},
    "test_split": "test",
    "output_type": "generate_until",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["</s>"], "max_gen_toks": 12, "temperature": 0},
    "metric_list": [{"metric": "exact_match"}],
}
for kind, path in (
    ("local-chat-completions", "chat/completions"),
    ("local-completions", "completions"),
):
    served = {"model": "smollm2", "base_url": f"{url}/v1/{path}", "num_concurrent": 2}
    found = lm_eval.simple_evaluate(
        model=kind,
        model_args={**served, "tokenizer": checkpoint, "tokenizer_backend": "huggingface"},
        tasks=[task],
        apply_chat_template=kind == "local-chat-completions",
    )
    said = [sample["resps"][0][0] for sample in found["samples"]["colours"]]
    assert len(said) == 3
    assert any(said)  # a chat model ends where it is not asked
    print(kind, said, found["results"]["colours"])
