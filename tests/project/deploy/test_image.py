"""What is built and tried by `make image`: the container is the one that the compose file says."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from deploy import image

ROOT = Path(__file__).resolve().parents[3]
SERVICE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["debian"]
# Keys of the service that say how it is built, found and looked after, and not what it may do.
ELSEWHERE = {"build", "healthcheck", "networks", "profiles", "restart", "stop_grace_period"}


def arguments():
    return image.run_arguments(
        SERVICE, {8000: 18000, 8001: 18001}, {"/models": "/m", "/var/cache/ge-backend": "c"}
    )


def test_the_container_is_confined_as_the_compose_file_says():
    """Read-only, an init, no capabilities, no new privileges, its limits and its volumes."""
    assert arguments() == [
        "--publish=127.0.0.1:18000:8000",
        "--publish=127.0.0.1:18001:8001",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--tmpfs=/tmp:exec,mode=1777",
        "--read-only",
        "--read-only-tmpfs=false",
        "--init",
        "--shm-size=1gb",
        "--pids-limit=4096",
        "--volume=/m:/models:ro",
        "--volume=c:/var/cache/ge-backend",
    ]


def test_no_key_of_the_service_is_left_out():
    """Whoever adds a key to the compose file says here what becomes of it."""
    taken = {
        "cap_drop",
        "init",
        "pids_limit",
        "ports",
        "read_only",
        "security_opt",
        "shm_size",
        "tmpfs",
        "volumes",
    }
    assert set(SERVICE) == taken | ELSEWHERE


def test_a_machine_without_podman_is_told_what_to_install(monkeypatch, capsys):
    """Nothing is begun that cannot be finished."""
    monkeypatch.setenv("PATH", "/nonexistent")
    assert image.main([]) == 1
    assert capsys.readouterr().err == "image: podman is missing; apt-get install podman\n"


def test_the_image_that_was_built_serves():
    """The one of `make image`, once: confined, right answers, an end in time and nothing left."""
    if problem := image.missing():
        pytest.skip(problem)
    built = ["podman", "image", "exists", image.IMAGE]
    if subprocess.run(built, check=False).returncode:
        pytest.skip(f"there is no {image.IMAGE}; make image builds it")
    if not any((ROOT / ".cache" / "encoder").glob("*/model.onnx")):
        pytest.skip("the demo's encoder has not been exported; make demo does")
    done = subprocess.run(
        [sys.executable, "-m", "deploy.image", "--no-build", "--rounds", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    assert "no process left" in done.stdout
