"""OpenVINO GenAI's continuous batching, in one process with its caller (`pipe`).

    python text_genai.py FOLDER bf16|fp32|int8

FOLDER is what `optimum-cli export openvino` wrote. Keys and values are held as is its default.
"""

import os
import sys
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai
from pipe import asked, said  # type: ignore[import-not-found]

folder, precision = sys.argv[1:]
scheduler = genai.SchedulerConfig()
scheduler.cache_size = 1  # GB
scheduler.enable_prefix_caching = False
properties = {
    "INFERENCE_PRECISION_HINT": "f32" if precision == "fp32" else "bf16",
    "INFERENCE_NUM_THREADS": len(os.sched_getaffinity(0)),
}
pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)
handles: dict[int, Any] = {}
for one in asked(lambda: bool(handles)):
    if one:
        greedy = genai.GenerationConfig(
            max_new_tokens=one.tokens, ignore_eos=True, do_sample=False, apply_chat_template=False
        )
        prompt = openvino.Tensor(np.array([one.prompt], np.int64))
        handles[one.number] = pipeline.add_request(one.number, prompt, greedy)
        continue
    pipeline.step()
    for number, handle in list(handles.items()):
        ended = handle.get_status() != genai.GenerationStatus.RUNNING
        while handle.can_read():
            for output in handle.read().values():
                said(number, output.generated_ids)
        if ended:
            del handles[number]
