"""What a release can do is read from what it says, and what it does not say is not guessed."""

from dataclasses import replace

import pytest

from ge_backend.errors import ServerError
from ge_tools.tritonserver.abilities import (
    ABILITIES,
    NEWEST,
    OLDEST,
    Abilities,
    release_of,
)
from ge_tools.tritonserver.installation import find_server

# As releases print it, cut to a few flags.
HELP = """Usage: tritonserver [options]
  --help
\tPrint usage

Server:
  --exit-timeout-secs <integer>
\tTimeout (in seconds) when exiting to wait for in-flight
\tinferences to finish; see --model-control-mode.
HTTP:
  --http-restricted-api <<string>:<string>=<string>>
\tSpecify restricted HTTP api setting.
"""
NEWER = f"""{HELP}
  --allow-client-shm <boolean>
\tAllow clients to register/unregister and use shared memory regions
  --grpc-infer-thread-count <integer>
  --grpc-max-response-pool-size <integer>
"""


def test_flags_are_those_that_the_help_explains():
    """Not those that it only mentions."""
    assert Abilities.read(HELP).flags == {"help", "exit-timeout-secs", "http-restricted-api"}


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("2.51.0", (2, 51)),
        ("2.70.0dev", (2, 70)),
        ("2.48", (2, 48)),
        ("nvidia-pytriton 0.7.0", None),
        ("", None),
        ("24.10", (24, 10)),
    ],
)
def test_the_release_is_what_begins_a_version(version, release):
    """The wheel's own version is none of the server."""
    assert release_of(version) == release


@pytest.mark.parametrize("name", ABILITIES)
def test_each_ability_is_there_from_its_release_on(name):
    """Where the help names a flag for it, that decides; where nothing is known, it is not there."""
    ability = ABILITIES[name]
    major, minor = ability.since
    if ability.flag:
        assert Abilities.read(NEWER, "2.44.0").has(name)
        assert not Abilities.read(HELP, "2.70.0").has(name)
    else:
        assert Abilities.read(HELP, f"{major}.{minor}.0").has(name)
        assert not Abilities.read(NEWER, f"{major}.{minor - 1}.9").has(name)
        assert not Abilities.read(NEWER).has(name)


def test_a_running_server_tells_its_release():
    """One that says nothing leaves what the installation's file has said."""
    told = Abilities.read(HELP).at("2.51.0")
    assert told.release == (2, 51)
    assert told.at("").release == (2, 51)


@pytest.mark.parametrize("release", [OLDEST, (2, 51), NEWEST, (2, 99), (3, 0), None])
def test_releases_from_the_oldest_on_are_served(release):
    """Newer ones than have been tried with a note."""
    abilities = replace(Abilities.read(HELP), release=release)
    abilities.check()
    assert bool(abilities.note) == (release is not None and release > NEWEST)


def test_an_older_release_is_refused_with_the_oldest_that_is_not():
    """By its version; by its help, if that lacks what all supported ones have."""
    said = r"supported are releases from 2\.44 \(container 24\.03\) on; install a newer one"
    with pytest.raises(ServerError, match=rf"this is Triton 2\.43; {said}"):
        Abilities.read(HELP, "2.43.0").check()
    with pytest.raises(ServerError, match=said):
        Abilities.read("  --exit-timeout-secs <integer>").check()


@pytest.fixture
def installed(tmp_path):
    """A function from a script to an installation that has it in place of the server."""

    def installed(script):
        for name in ("bin/tritonserver", "backends/python/libtriton_python.so"):
            (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / "backends/python/libtriton_python.so").touch()
        (tmp_path / "bin/tritonserver").write_text(script)
        (tmp_path / "bin/tritonserver").chmod(0o755)
        return find_server(tmp_path)

    return installed


def test_an_installation_is_asked_for_its_help(installed, tmp_path):
    """Which ends with an error, on the one or on the other output; its version is in a file."""
    (tmp_path / "TRITON_VERSION").write_text("2.48.0\n")
    abilities = Abilities.of(
        installed("#!/bin/sh\necho '  --some-flag'\necho '  --other' >&2\nexit 1")
    )
    assert abilities == Abilities(flags=frozenset({"some-flag", "other"}), release=(2, 48))


def test_one_that_cannot_be_run_is_an_error_of_its_own(installed):
    """As a binary of another architecture."""
    with pytest.raises(ServerError, match=r"tritonserver --help cannot be run"):
        Abilities.of(installed(""))
