"""Finding, assembling, starting and stopping a real tritonserver."""

from ge_backend.model.config.model_folder import BACKEND
from ge_tools.tritonserver.abilities import Abilities
from ge_tools.tritonserver.assemble import assemble_backends, backend_files
from ge_tools.tritonserver.directory import ServerDirectory, processes_of, shared_memory_of
from ge_tools.tritonserver.installation import (
    ServerInstallation,
    find_server,
    running_python,
    stub_python,
)
from ge_tools.tritonserver.options import ServerOptions, free_ports
from ge_tools.tritonserver.server import TritonServer

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
