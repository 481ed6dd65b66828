"""Finding, assembling, starting and stopping a real tritonserver."""

from ge_backend.config.model_folder import BACKEND
from ge_backend.tritonserver.abilities import Abilities
from ge_backend.tritonserver.assemble import assemble_backends, backend_files
from ge_backend.tritonserver.directory import ServerDirectory, processes_of, shared_memory_of
from ge_backend.tritonserver.installation import (
    ServerInstallation,
    find_server,
    running_python,
    stub_python,
)
from ge_backend.tritonserver.options import ServerOptions, free_ports
from ge_backend.tritonserver.server import TritonServer

__all__ = [
    "BACKEND",
    "Abilities",
    "ServerDirectory",
    "ServerInstallation",
    "ServerOptions",
    "TritonServer",
    "assemble_backends",
    "backend_files",
    "find_server",
    "free_ports",
    "processes_of",
    "running_python",
    "shared_memory_of",
    "stub_python",
]
