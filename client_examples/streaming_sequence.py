"""Many signals, watched live: the model `anomaly_detector`, one sequence for each signal.

Each signal is a sine with one odd value in it. Every signal has a bidirectional gRPC stream of its
own: values go up as they come, scores come back as they are ready, and the state of each sequence
stays on the server's device between two values.

python client_examples/streaming_sequence.py --signals 16 --values 64
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt
import tritonclient.grpc as grpcclient

import connection

MODEL = "anomaly_detector"
# The network needs some values to find out what kind of signal it sees.
SETTLING = 16
# A value further than this from what was expected is odd.
ODD = 1.0
Values = npt.NDArray[np.float32]


def signal(number: int, length: int) -> tuple[Values, int]:
    """Return FP32 [length] and the place of its odd value."""
    random = np.random.default_rng(number)
    values = 0.5 * np.sin(random.uniform(0.1, 0.4) * np.arange(length) + random.uniform(0, 6.3))
    odd = int(random.integers(SETTLING, length))
    values[odd] += 1.5
    return values.astype(np.float32), odd


def watch(url: str, number: int, values: Values) -> list[float]:
    """Send a signal value by value; return the score of each."""
    answers: SimpleQueue[tuple[grpcclient.InferResult, Exception | None]] = SimpleQueue()
    with grpcclient.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for index, value in enumerate(values):
            item = grpcclient.InferInput("value", [1, 1], "FP32")
            item.set_data_from_numpy(value.reshape(1, 1))
            client.async_stream_infer(
                MODEL,
                [item],
                sequence_id=number + 1,  # 0 means no sequence; texts are allowed as well
                sequence_start=index == 0,
                sequence_end=index == len(values) - 1,
            )
        scores = []
        for _ in values:
            result, error = answers.get(timeout=60)
            if error is not None:
                raise error
            scores.append(float(result.as_numpy("score")[0, 0]))
    return scores


def main(options: argparse.Namespace) -> None:
    with grpcclient.InferenceServerClient(options.url) as client:
        client.get_model_metadata(MODEL)  # refused here if it is not served: a stream says less
    signals = [signal(number, options.values) for number in range(options.signals)]
    started = time.perf_counter()
    with ThreadPoolExecutor(options.signals) as threads:
        watched = [
            threads.submit(watch, options.url, number, values)
            for number, (values, _) in enumerate(signals)
        ]
    seconds = time.perf_counter() - started
    for number, ((_, odd), done) in enumerate(zip(signals, watched, strict=True)):
        scores = done.result()
        # After an odd value the next ones surprise as well: the first one counts.
        found = next(i for i, score in enumerate(scores) if i >= SETTLING and score > ODD)
        print(f"signal {number}: value {found} is odd (score {scores[found]:.2f}), truly {odd}")
    steps = options.signals * options.values
    print(f"{steps} steps in {seconds:.2f} s, {steps / seconds:.0f} steps per second")


if __name__ == "__main__":
    parser = connection.parser(__doc__, protocols=["grpc"])  # streams need gRPC
    parser.add_argument("--signals", type=int, default=16)
    parser.add_argument("--values", type=int, default=64, help="of each signal")
    connection.run(main, parser)
