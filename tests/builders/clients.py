"""Clients of the API by their public packages: what is installed, and the script that uses it."""

from __future__ import annotations

import ast
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from builders import environments
from builders.environments import NotHere

__all__ = ["CLIENTS", "SCRIPTS", "Client", "installed", "row", "run"]

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "server" / "clients"
RUN_TIMEOUT_S = 300
SKIPPED = 77
# pip would take the newest, and a build for GPUs.
TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class Client:
    """One package in one version.

    Attributes:
        pinned: the package, as pip is asked for it.
        script: in tests/server/clients; its docstring says what it does.
        further: what else is installed, torch first.
    """

    pinned: str
    script: str
    further: tuple[str, ...] = ()

    @property
    def does(self) -> str:
        """What the script does, behind the colon of its docstring's first line."""
        said = ast.get_docstring(ast.parse((SCRIPTS / self.script).read_text())) or ""
        return said.partition(": ")[2].removesuffix(".")


# The program that genai-perf runs: on PyPI its own package is empty, and newer clients have none.
PERF_ANALYZER = (TORCH, "tritonclient==2.48.0", "nvidia-cuda-runtime-cu12==12.9.79")
CLIENTS = (
    Client("openai==3.57.0", "openai_sdk.py"),
    Client("openai==2.54.0", "openai_sdk.py"),
    Client("litellm==1.110.2", "litellm_calls.py"),
    Client("langchain-openai==1.7.4", "langchain_chat.py"),
    Client("langchain==1.5.2", "langchain_agent.py", ("langchain-openai==1.7.4",)),
    Client("llama-index-llms-openai-like==0.8.1", "llama_index_chat.py"),
    Client("instructor==1.17.0", "instructor_models.py"),
    Client("pydantic-ai-slim[openai]==2.68.0", "pydantic_ai_agent.py"),
    Client("openai-agents==0.24.0", "openai_agents.py"),
    Client("smolagents[openai]==1.26.0", "smolagents_run.py"),
    Client("outlines[openai]==1.3.3", "outlines_answers.py"),
    Client("guidellm==0.8.1", "guidellm_benchmark.py", (TORCH,)),
    Client("genai-perf==0.0.16", "genai_perf_profile.py", PERF_ANALYZER),
    Client("lm-eval[api]==0.4.13", "lm_eval_task.py", (TORCH, "transformers")),
    Client("cohere==7.3.1", "cohere_ranks.py"),
    Client("langchain-cohere==0.6.0", "langchain_ranks.py"),
)


def row(client: Client) -> str:
    """Return the line of docs/openai.md's list."""
    package, version = client.pinned.split("==")
    return f"- `{package.partition('[')[0]}` {version}"


def installed(client: Client) -> Path:
    """Return the Python of the client's own environment, made where it is not there yet.

    Raises:
        NotHere: pip has failed.
    """
    return environments.installed((*client.further, client.pinned), "clients")


def run(client: Client, python: Path, home: Path, *arguments: str) -> str:
    """Return what the script prints; its assertions are the test.

    It runs in `home`, an empty folder. One that ends with 77 says that what it needs is not here.

    Raises:
        NotHere: what the script needs is not here.
    """
    environment = {
        **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        "HOME": str(home),
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        # Nobody else is asked for anything.
        **dict.fromkeys(("HF_HUB_OFFLINE", "DO_NOT_TRACK", "LITELLM_LOCAL_MODEL_COST_MAP"), "True"),
    }
    command = [str(python), str(SCRIPTS / client.script), *arguments]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        cwd=home,
        env=environment,
    )
    if done.returncode == SKIPPED:
        raise NotHere(done.stdout.strip()[-500:])
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"[-6000:]
    return done.stdout
