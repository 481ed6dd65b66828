"""vLLM without vLLM: an engine that writes what it is told to, under the names that we import.

`install(monkeypatch)` puts it where `import vllm…` finds it and returns it.
"""

import asyncio
import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace


class VLLMClientError(Exception):
    pass


class GracefulHTTPError(Exception):
    pass


class EngineDeadError(Exception):
    pass


class SamplingParams(SimpleNamespace):
    pass


@dataclass
class StructuredOutputsParams:
    json: str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


@dataclass
class AsyncEngineArgs:
    model: str
    dtype: str
    served_model_name: str
    max_model_len: int
    enforce_eager: bool
    skip_tokenizer_init: bool

    @staticmethod
    def add_cli_args(parser):
        for name in ("model", "dtype", "served-model-name"):
            parser.add_argument(f"--{name}")
        parser.add_argument("--max-model-len", type=int, default=64)
        for name in ("enforce-eager", "skip-tokenizer-init"):
            parser.add_argument(f"--{name}", action=BooleanOptionalAction, default=False)

    @classmethod
    def from_cli_args(cls, known: Namespace):
        return cls(**vars(known))


@dataclass
class Logprob:
    logprob: float
    rank: int


class AsyncLLM:
    """Counts up from the prompt's last token; 13 is refused, 14 hangs, 15 kills, 16 is too many."""

    last = None

    def __init__(self, arguments, stat_loggers):
        if arguments.max_model_len > 1000:
            raise ValueError("max_model_len is more than the model has")
        self.arguments, self.errored, self.asked, self.gone = arguments, False, [], []
        self.down = False
        self.logger = stat_loggers[0](None, 0)
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(
                max_model_len=arguments.max_model_len,
                skip_tokenizer_init=arguments.skip_tokenizer_init,
            ),
            cache_config=SimpleNamespace(num_gpu_blocks=10, block_size=16),
        )
        AsyncLLM.last = self

    @classmethod
    def from_engine_args(cls, arguments, stat_loggers):
        asyncio.get_running_loop()
        return cls(arguments, stat_loggers)

    def shutdown(self):
        self.down = True

    async def generate(self, prompt, wishes, name, *, priority):
        self.asked.append((prompt, wishes, name, priority))
        last = prompt["prompt_token_ids"][-1]
        faults = {13: VLLMClientError, 15: EngineDeadError, 16: GracefulHTTPError}
        if last in faults:
            raise faults[last](f"no {last}")
        try:
            if last == 14:
                await asyncio.sleep(60)
            for number in range(1, wishes.max_tokens + 1):
                output = self._output(last + number, wishes, number == wishes.max_tokens)
                stats = SimpleNamespace(num_waiting_reqs=2, num_running_reqs=3, kv_cache_usage=0.5)
                self.logger.record(stats, SimpleNamespace(num_preempted_reqs=1), engine_idx=0)
                yield output
                if output.outputs[0].finish_reason:
                    return
                await asyncio.sleep(0)
        except (asyncio.CancelledError, GeneratorExit):
            self.gone.append(name)
            raise

    @staticmethod
    def _output(token, wishes, is_last):
        finish = "length" if is_last else None
        if token in wishes.stop_token_ids:
            finish = "stop"
        rows = None
        if wishes.logprobs is not None:
            rows = [{token: Logprob(-2.0, 3), 1: Logprob(-0.5, 1), 2: Logprob(-1.0, 2)}]
        output = SimpleNamespace(token_ids=[token], logprobs=rows, finish_reason=finish)
        return SimpleNamespace(outputs=[output])


MODULES = {
    "vllm": {},
    "vllm.exceptions": {"VLLMClientError": VLLMClientError, "GracefulHTTPError": GracefulHTTPError},
    "vllm.sampling_params": {
        "SamplingParams": SamplingParams,
        "StructuredOutputsParams": StructuredOutputsParams,
        "RequestOutputKind": SimpleNamespace(DELTA="delta"),
    },
    "vllm.engine": {},
    "vllm.engine.arg_utils": {"AsyncEngineArgs": AsyncEngineArgs},
    "vllm.utils": {},
    "vllm.utils.argparse_utils": {"FlexibleArgumentParser": ArgumentParser},
    "vllm.v1": {},
    "vllm.v1.engine": {},
    "vllm.v1.engine.async_llm": {"AsyncLLM": AsyncLLM},
    "vllm.v1.engine.exceptions": {"EngineDeadError": EngineDeadError},
}
OURS = ("arguments", "model", "open")


def install(monkeypatch):
    """Make `import vllm` find this, and our modules be imported anew with it; return `AsyncLLM`."""
    for name, members in MODULES.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    for name in OURS:
        monkeypatch.delitem(sys.modules, f"ge_text.vllm.{name}", raising=False)
    return AsyncLLM
