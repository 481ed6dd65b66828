"""From an `.om` file, or a grid of them, to the graph that runs them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ge_backend.engines.acl.device import AclDevice
from ge_backend.engines.acl.graph import OmGraph
from ge_backend.engines.acl.memory import Block
from ge_backend.engines.acl.om_model import LoadedModel, OmSource, Sizes, WorkMemory
from ge_backend.engines.acl.range_graph import RangeGraph
from ge_backend.errors import GraphFailed, ModelError
from ge_backend.model.files.om_files import OmFile, om_files
from ge_backend.model.files.om_weights import weights_digest

__all__ = ["load_om"]


def load_om(source: OmSource) -> OmGraph | RangeGraph:
    """Return the graph of a file, or of all files of the grid that it belongs to.

    Raises:
        ModelError: a file is missing, corrupt or for another chip, or the files of a grid are not
            of one model, or not what their names say.
        Unsupported: a file wants something that the backend does not give.
        OutOfMemory: weights, work memory or tensors do not fit.
    """
    taken = contextlib.ExitStack()
    try:
        with source.device.entered():
            models = _loaded(source, taken)
            if models[0].description.freely:
                return RangeGraph(source, models[0], taken)
            return OmGraph(source, models, taken)
    except BaseException as error:
        source.device.settle()
        taken.close()
        if isinstance(error, GraphFailed):
            raise ModelError(f"{source.path} cannot be loaded: {error}") from error
        raise


def _loaded(source: OmSource, taken: contextlib.ExitStack) -> list[LoadedModel]:
    """Load all files, in one work memory: they take turns in it, so it is as large as one needs."""
    files = _keyed([(file, _sizes(source.device, file.path)) for file in om_files(source.path)])
    scratch = _scratch(source, max(sizes.work for _, sizes in files), taken)
    return [_load(source, file, sizes, scratch, taken) for file, sizes in files]


def _sizes(device: AclDevice, path: Path) -> Sizes:
    """Return what a file needs, unless ACL refuses to say: it may, where RuntimeV2 runs it.

    Source: CANN, aclmdlQuerySize and aclmdlLoadFromFileWithMem.
    """
    try:
        return Sizes(*device.models.sizes(str(path)))
    except GraphFailed as refusal:
        return Sizes(0, 0, refusal=refusal)


def _keyed(files: Sequence[tuple[OmFile, Sizes]]) -> list[tuple[OmFile, Sizes]]:
    """Return the files with a key for those of a grid whose weights may be the same."""
    bytes_of = Counter(sizes.weights for _, sizes in files)
    return [
        (file, replace(sizes, key=weights_digest(file.path)))
        if sizes.weights and bytes_of[sizes.weights] > 1
        else (file, sizes)
        for file, sizes in files
    ]


def _scratch(source: OmSource, nbytes: int, taken: contextlib.ExitStack) -> WorkMemory:
    """Return a place in the pool, or a block of its own where there is no pool."""
    if source.pool is not None:
        # Also with 0 bytes, of a file whose work memory the system manages: see `Workspace.place`.
        place = source.workspace.place(nbytes)
        if nbytes:
            return WorkMemory(source.pool.address + place.offset, place.nbytes)
    elif nbytes:
        block = Block(source.device.runtime, nbytes, f"the work memory of {source.path}")
        taken.callback(block.close)
        return WorkMemory(block.address, nbytes)
    return WorkMemory()


def _load(
    source: OmSource, file: OmFile, sizes: Sizes, scratch: WorkMemory, taken: contextlib.ExitStack
) -> LoadedModel:
    with _refused(source.device, file.path):
        model = LoadedModel(file, sizes, scratch, source)
        taken.callback(model.close)
        described = model.description
        if sizes.refusal and not (described.freely or model.manages_work_memory):
            raise sizes.refusal
    if file.label and (described.freely or len(described.gears.shapes) > 1):
        raise ModelError(
            f"{file.path} has dimensions that vary; a file of a grid must be compiled for the one "
            "shape that its name says"
        )
    return model


@contextlib.contextmanager
def _refused(device: AclDevice, path: Path) -> Iterator[None]:
    """Let what ACL says about a file say as well what kind of file this device runs."""
    try:
        yield
    except GraphFailed as error:
        raise ModelError(
            f"{path} cannot be loaded: {error}; it must be a whole .om file, compiled by atc with "
            f"--soc_version={device.chip} and by a CANN that is no newer than this machine's"
        ) from error
