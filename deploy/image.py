"""Builds the image from public packages, and tries it: `make image`.

The base is Debian's own image where a registry can be reached, else one that `debootstrap` makes of
Debian's packages. The container is started as docker-compose.yml says of the service `debian`, on
free ports of this machine; then the demo's client sends it a page of sentences.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

__all__ = ["IMAGE", "main", "missing", "run_arguments"]

ROOT = Path(__file__).resolve().parents[1]
SERVICE = "debian"
IMAGE = "localhost/ge-debian"
SUITE = "bookworm"
PUBLIC_BASE, OWN_BASE = f"docker.io/library/debian:{SUITE}-slim", f"localhost/debian:{SUITE}"
PULL_S, BUILD_S, START_S = 60, 1800, 300
# Of the container's processes, where this machine allows as many: podman asks for more than a
# machine may have to give.
MAX_FILES, MAX_PROCESSES = 65536, 32768


class ImageError(Exception):
    """The image cannot be built here, or does not do what it should."""


def missing() -> str:
    """Return why no image can be built or run on this machine; "" where it can."""
    if shutil.which("podman") is None:
        return "podman is missing; apt-get install podman"
    done = _run("podman", "info", check=False)
    if done.returncode:
        return f"podman does not work here; it needs root or user namespaces: {_last(done)}"
    return ""


def run_arguments(
    service: Mapping[str, Any], ports: Mapping[int, int], volumes: Mapping[str, str]
) -> list[str]:
    """Return the arguments of `podman run` that mean the same as a service of the compose file.

    Args:
        service: the service, as YAML gives it.
        ports: of this machine, by the container's.
        volumes: what to mount, by the place in the container; read-only where the service says so.
    """
    arguments = [f"--publish=127.0.0.1:{own}:{inside}" for inside, own in ports.items()]
    arguments += [f"--cap-drop={name}" for name in service["cap_drop"]]
    arguments += [f"--security-opt={o.removesuffix(':true')}" for o in service["security_opt"]]
    arguments += [f"--tmpfs={place}" for place in service["tmpfs"]]
    arguments += ["--read-only", "--read-only-tmpfs=false"] * service["read_only"]
    arguments += ["--init"] * service["init"]
    arguments += [f"--shm-size={service['shm_size']}", f"--pids-limit={service['pids_limit']}"]
    for volume in service["volumes"]:
        _, place, *mode = volume.replace("${MODELS:-./models}", "models").split(":")
        arguments.append(":".join(["--volume=" + volumes[place], place, *mode]))
    return arguments


def build() -> None:
    """Build the image; what was built before is taken as it is."""
    with tempfile.TemporaryDirectory(prefix="ge-image-") as folder:
        base = _base(Path(folder))
        arguments = ["--isolation=chroot", "--format=docker", *_limits(), *_lent(Path(folder))]
        arguments += [f"--target={SERVICE}", f"--build-arg=DEBIAN_IMAGE={base}", f"--tag={IMAGE}"]
        arguments += [f"--file={ROOT / 'deploy' / 'Dockerfile'}", str(ROOT)]
        print(f"building {IMAGE} on {base}", flush=True)
        _run("podman", "build", *arguments, timeout=BUILD_S)


def _base(folder: Path) -> str:
    """Return the name of a Debian image, made of packages where none can be pulled."""
    for name in (PUBLIC_BASE, OWN_BASE):
        if _run("podman", "image", "exists", name, check=False).returncode == 0:
            return name
    if _run("podman", "pull", "--quiet", PUBLIC_BASE, check=False, timeout=PULL_S).returncode == 0:
        return PUBLIC_BASE
    if os.geteuid() != 0:
        raise ImageError("no registry has Debian's image, and debootstrap needs root to make one")
    if shutil.which("debootstrap") is None:
        raise ImageError("no registry has Debian's image; apt-get install debootstrap to make one")
    print("no registry can be reached: making a base by debootstrap", flush=True)
    root = folder / "root"
    _run("debootstrap", "--variant=minbase", SUITE, str(root), timeout=BUILD_S)
    (root / "etc" / "apt" / "sources.list").write_text(_sources(root))
    for leftover in ("cache/apt/archives", "lib/apt/lists"):
        shutil.rmtree(root / "var" / leftover)
    archive = folder / "root.tar"
    _run("tar", "-C", str(root), "-cf", str(archive), ".", timeout=BUILD_S)
    _run("podman", "import", "--quiet", str(archive), OWN_BASE, timeout=BUILD_S)
    return OWN_BASE


def _sources(root: Path) -> str:
    """Return apt's sources with Debian's updates beside what debootstrap wrote."""
    line = (root / "etc" / "apt" / "sources.list").read_text().split("\n")[0]
    security = line.replace("/debian ", "/debian-security ").replace(SUITE, f"{SUITE}-security")
    return "\n".join([line, line.replace(f" {SUITE} ", f" {SUITE}-updates "), security, ""])


def _lent(folder: Path) -> list[str]:
    """Return what lends pip this machine's certificates while it builds; none stay in the image."""
    certificates = ssl.get_default_verify_paths().cafile
    if certificates is None:
        return []
    settings = folder / "pip.conf"
    settings.write_text("[global]\ncert = /run/certificates.pem\n")
    return [
        f"--volume={certificates}:/run/certificates.pem:ro",
        f"--volume={settings}:/etc/pip.conf:ro",
    ]


def _limits() -> list[str]:
    files, processes = (
        min(resource.getrlimit(which)[1], most)
        for which, most in (
            (resource.RLIMIT_NOFILE, MAX_FILES),
            (resource.RLIMIT_NPROC, MAX_PROCESSES),
        )
    )
    return [f"--ulimit=nofile={files}:{files}", f"--ulimit=nproc={processes}:{processes}"]


def _runtime() -> list[str]:
    """Return which runtime to take: crun refuses both versions of control groups side by side."""
    mixed = Path("/sys/fs/cgroup/unified").is_dir() and shutil.which("runc") is not None
    return ["--runtime=runc"] if mixed else []


def attempt(rounds: int) -> dict[str, str]:
    """Serve the demo's encoder from the image and return what was found, in words.

    Raises:
        ImageError: something is not as it should be.
    """
    from demo.ensemble import embed  # noqa: PLC0415 - not needed to build
    from demo.sentences import PAGE  # noqa: PLC0415

    texts = [sentence.text for sentence in PAGE]
    with tempfile.TemporaryDirectory(prefix="ge-image-") as folder:
        models = Path(folder) / "models"
        right = _write_models(models)
        with _container(models) as (name, ports, started):
            health = _service()["healthcheck"]["test"][1:]
            _wait(name, health)
            found = {"start": f"{time.monotonic() - started:.1f} s until its health check passes"}
            for _ in range(rounds):
                answers = embed(f"127.0.0.1:{ports[8001]}", texts)
                difference = float(abs(answers - right).max())
                if not difference < 1e-5:  # noqa: PLR2004 - as the demo allows ONNX Runtime
                    raise ImageError(f"an embedding differs by {difference:.1e} from the truth")
            found["answers"] = f"{rounds * len(texts)} texts, all right"
            found["confined"] = _confined(name)
            found["stop"] = _stopped(name)
    size = _run("podman", "image", "inspect", "--format={{.Size}}", IMAGE).stdout
    return {"size": f"{int(size) / 1e6:.0f} MB", **found}


def _write_models(models: Path) -> Any:
    """Write the demo's encoder and tokenizer; return the right embeddings of its page."""
    from demo.encoder import TOKENIZER_FILE, load_tokenizer, prepare, tokenise  # noqa: PLC0415
    from demo.ensemble import write_ensemble  # noqa: PLC0415
    from demo.repository import served_models, write_repository  # noqa: PLC0415
    from demo.sentences import PAGE  # noqa: PLC0415
    from demo.truth import unpadded  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415 - not needed to build

    encoder = prepare(ROOT / ".cache" / "encoder", Console())
    served = served_models(encoder)[:1]
    linked = models.parent / "linked"
    write_repository(linked, served)
    write_ensemble(linked, TOKENIZER_FILE, served[0].name)
    shutil.copytree(linked, models)  # files for links, which lead nowhere in a container
    for path in (models, *models.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    models.parent.chmod(0o755)
    return unpadded(encoder.onnx, tokenise([s.text for s in PAGE], load_tokenizer()))


@contextlib.contextmanager
def _container(models: Path) -> Iterator[tuple[str, Mapping[int, int], float]]:
    """Run the image while the block runs; gives its name, its ports here, and when it started."""
    from ge_tools.tritonserver.options import free_ports  # noqa: PLC0415

    name = f"ge-image-{os.getpid()}"
    inside = [int(port.split(":")[1]) for port in _service()["ports"]]
    ports = dict(zip(inside, free_ports(len(inside)), strict=True))
    cache = f"{name}-cache"
    volumes = {"/models": str(models), "/var/cache/ge-backend": cache}
    arguments = [*_runtime(), *_limits(), *run_arguments(_service(), ports, volumes)]
    started = time.monotonic()
    try:
        _run("podman", "run", "--detach", f"--name={name}", *arguments, IMAGE)
        yield name, ports, started
    except ImageError as error:
        log = _run("podman", "logs", "--tail=40", name, check=False)
        raise ImageError(f"{error}\n{log.stdout}{log.stderr}") from error
    finally:
        _run("podman", "rm", "--force", "--time=5", name, check=False)
        _run("podman", "volume", "rm", "--force", cache, check=False)


def _service() -> Mapping[str, Any]:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    found: Mapping[str, Any] = services[SERVICE]
    return found


def _wait(name: str, health: Sequence[str]) -> None:
    until = time.monotonic() + START_S
    while (done := _run("podman", "exec", name, *health, check=False)).returncode:
        alive = _run("podman", "inspect", "--format={{.State.Running}}", name, check=False).stdout
        if alive.strip() != "true" or time.monotonic() > until:
            raise ImageError(f"the container does not become healthy: {_last(done)}")
        time.sleep(0.5)


def _confined(name: str) -> str:
    """Return what the server in the container is and may do.

    Raises:
        ImageError: it is root, has a capability, or can write where it should not.
    """
    status = _run("podman", "exec", name, "cat", "/proc/self/status").stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    user = fields["Uid"].split("\t")[0]
    if user == "0" or int(fields["CapEff"], 16) or fields["NoNewPrivs"] != "1":
        raise ImageError(f"user {user}, capabilities {fields['CapEff']}, {fields['NoNewPrivs']=}")
    for place in ("/opt/ge", "/home/ge", "/models"):
        if _run("podman", "exec", name, "touch", f"{place}/x", check=False).returncode == 0:
            raise ImageError(f"{place} can be written in the container")
    return f"user {user}, no capabilities, no new privileges, nothing but volumes can be written"


def _stopped(name: str) -> str:
    """Stop the container as its platform would; return how that went.

    Raises:
        ImageError: it had to be killed, or failed.
    """
    grace = int(_service()["stop_grace_period"].removesuffix("s"))
    pid = int(_run("podman", "inspect", "--format={{.State.Pid}}", name).stdout)
    space = _space(Path(f"/proc/{pid}/ns/pid"))
    started = time.monotonic()
    _run("podman", "stop", f"--time={grace}", name, timeout=grace + 30)
    seconds = time.monotonic() - started
    state = json.loads(_run("podman", "inspect", "--format={{json .State}}", name).stdout)
    if state["ExitCode"] != 0 or seconds >= grace:
        raise ImageError(f"it ended with {state['ExitCode']} after {seconds:.1f} s of {grace}")
    left = [path.parts[2] for path in Path("/proc").glob("[0-9]*/ns/pid") if _space(path) == space]
    if left:
        raise ImageError(f"processes {', '.join(left)} are left of the container")
    return f"{seconds:.1f} s after SIGTERM, exit code 0, no process left"


def _space(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""  # it ended meanwhile, or is somebody else's


def _run(
    program: str, *arguments: str, check: bool = True, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a program and return what it said.

    Raises:
        ImageError: it failed, with the last line of what it said; where `check` is False, only
            because it took too long.
    """
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, check=False, timeout=timeout
        )
    except subprocess.TimeoutExpired as error:
        raise ImageError(f"{program} {arguments[0]} took more than {timeout:.0f} s") from error
    if check and done.returncode:
        raise ImageError(f"{program} {arguments[0]} failed: {_last(done)}")
    return done


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def main(arguments: Sequence[str]) -> int:
    """Build and try the image; return 0, or 1 with the reason."""
    parser = argparse.ArgumentParser(prog="python -m deploy.image", description=__doc__)
    parser.add_argument("--no-build", action="store_true", help="try the one that is there")
    parser.add_argument("--rounds", type=int, default=8, help="how often the page is sent")
    options = parser.parse_args(arguments)
    try:
        if problem := missing():
            raise ImageError(problem)
        if not options.no_build:
            build()
        for what, found in attempt(options.rounds).items():
            print(f"{what:10} {found}")
    except ImageError as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
