"""The compose file names what is there, and grants no more than is needed."""

import re
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from ge_tools import health
from ge_tools.tritonserver.abilities import ABILITIES

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
SERVERS = ("cpu", "cuda", "npu", "debian")


@pytest.mark.parametrize("name", SERVERS)
def test_each_profile_builds_a_stage_of_the_dockerfile(name):
    """A profile, a stage and a service have one name."""
    service = COMPOSE["services"][name]
    assert service["profiles"] == [name]
    assert re.search(rf"^FROM .* AS {name}$", DOCKERFILE, re.MULTILINE)
    assert service["build"]["target"] == name


def test_images_are_built_on_either_base_of_triton():
    """The one that is named is a stage; the newer one lets pip install beside apt's packages."""
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    by_name = {stage.split("\n", 1)[0].rpartition(" ")[2]: stage for stage in stages}
    assert "PIP_BREAK_SYSTEM_PACKAGES=1" in by_name["triton-newest"]
    for name in ("cpu", "cuda"):
        base = COMPOSE["services"][name]["build"]["args"]["BASE"]
        assert base.removeprefix("${BASE:-").removesuffix("}") in by_name
    newest = re.search(r"^ARG NEWEST_TRITON_IMAGE=.*:(\S+)-py3$", DOCKERFILE, re.MULTILINE)[1]
    assert newest > max(ability.container for ability in ABILITIES.values())


@pytest.mark.parametrize(
    ("stage", "image"), [("triton", "TRITON"), ("triton-newest", "NEWEST_TRITON")]
)
def test_images_have_a_numpy_that_their_stubs_read(stage, image):
    """It takes the place of the one that `make` installs, which is for the wheel's server."""
    container = re.search(rf"^ARG {image}_IMAGE=.*:(\S+)-py3$", DOCKERFILE, re.MULTILINE)[1]
    pin = re.search(rf" AS {stage}\n(?:#.*\n)*ENV NUMPY=(numpy==(\d+)\.\S+)", DOCKERFILE)
    assert int(pin[2]) == (1 if container < ABILITIES["numpy_2"].container else 2)
    pattern, put = re.search(r'sed -i "s/(.*)/(.*)/" /src/constraints.txt', DOCKERFILE).groups()
    pinned = (ROOT / "constraints.txt").read_text()
    changed = re.sub(pattern, put.replace("${NUMPY}", pin[1]), pinned, flags=re.MULTILINE)
    assert re.findall(r"^numpy==.*", changed, re.MULTILINE) == [pin[1]]


@pytest.mark.parametrize("name", SERVERS)
def test_servers_are_confined(name):
    """Read-only root, no capabilities, no privileges, not root."""
    service = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "privileged" not in service
    assert DOCKERFILE.rstrip().rpartition("USER ")[2].startswith("1001")


def test_search_paths_are_the_images():
    """CANN's image names its Python and all of the driver's folders; a value here replaces that."""
    for service in COMPOSE["services"].values():
        assert not {"LD_LIBRARY_PATH", "PYTHONPATH", "PATH"} & service.get("environment", {}).keys()


@pytest.mark.parametrize("name", SERVERS)
def test_a_check_has_the_time_to_say_why_it_fails(name):
    """The command gives up on a server that hangs, and prints that."""
    check = COMPOSE["services"][name]["healthcheck"]
    assert check["test"][:3] == ["CMD", "ge-backend", "health"]
    assert float(check["timeout"].removesuffix("s")) >= 2 * health.ANSWER_S


@pytest.mark.parametrize("name", SERVERS)
def test_programs_may_be_run_from_the_temporary_folder(name):
    """The server's stub lies there; Docker mounts a tmpfs noexec unless told otherwise."""
    mounts = dict(mount.split(":") for mount in COMPOSE["services"][name]["tmpfs"])
    assert mounts["/tmp"].split(",") == ["exec", "mode=1777"]


def test_stages_copy_and_install_what_there_is():
    """Files of the repository, and extras of the package; OpenAI's API is in every one."""
    copied = re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE)
    assert all((ROOT / path).exists() for line in copied for path in line.split())
    extras = metadata.metadata("triton-ge-backend").get_all("Provides-Extra")
    chosen = re.findall(r"(?m)^ARG EXTRAS=(.*)$", DOCKERFILE)
    named = re.findall(r"/src\[(.*?)\]", DOCKERFILE)
    assert sum("${EXTRAS}" in names for names in named) == len(chosen)
    installed = [set(names.split(",")) for names in chosen]
    assert set().union(*installed, *(set(names.split(",")) for names in named)) <= {
        *extras,
        "${EXTRAS}",
    }
    assert len(installed) == len(SERVERS) - 1  # cuda is on cpu
    assert all("openai" in names for names in installed)


def test_images_but_the_small_one_serve_every_kind_of_model():
    """Text generation, its answers in a given form, checkpoints and images; docs name it for that."""
    kinds = {"onnx", "text", "image", "generation", "structure", "openai"}
    *large, small = re.findall(r"(?m)^ARG EXTRAS=(.*)$", DOCKERFILE)
    assert all(kinds <= set(names.split(",")) for names in large)
    page = (ROOT / "docs" / "deploy.md").read_text()
    (said,) = re.findall(r"--build-arg EXTRAS=([a-z,]+)", page)
    assert kinds | set(small.split(",")) <= set(said.split(","))


def test_the_group_that_may_open_the_cards_is_made_where_the_base_has_none():
    """With the number of the host's, which the build is told."""
    made, used = (
        DOCKERFILE.index("getent group HwHiAiUser"),
        DOCKERFILE.index("--groups HwHiAiUser"),
    )
    assert made < used
    assert "HWHIAIUSER_GID" in (ROOT / "docs" / "deploy.md").read_text()


def test_servers_listen_where_their_ports_are_published():
    """By itself the server listens on the container's own loopback, which nobody outside reaches."""
    entries = [line for line in DOCKERFILE.splitlines() if line.startswith("ENTRYPOINT")]
    assert len(entries) == len(SERVERS) - 1  # cuda has that of cpu
    for entry in entries:
        assert "--host 0.0.0.0" in entry.replace('", "', " ")


def test_what_is_mounted_from_the_repository_exists():
    """Prometheus and Grafana read files of this repository."""
    mounted = [
        volume.split(":")[0]
        for service in COMPOSE["services"].values()
        for volume in service.get("volumes", [])
        if volume.startswith("./")
    ]
    assert mounted
    assert all((ROOT / path).exists() for path in mounted)


def test_prometheus_asks_where_the_server_answers():
    """The alias that every server has, at the port that it publishes."""
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())
    (target,) = scraped["scrape_configs"][0]["static_configs"][0]["targets"]
    host, port = target.split(":")
    for name in SERVERS:
        service = COMPOSE["services"][name]
        assert host in service["networks"]["default"]["aliases"]
        assert f"{port}:{port}" in service["ports"]
