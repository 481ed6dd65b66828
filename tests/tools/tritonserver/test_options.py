import socket
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ge_backend.errors import ConfigError, ServerError
from ge_tools.tritonserver.abilities import Abilities
from ge_tools.tritonserver.options import KEY_HEADER, PORTS, ServerOptions, free_ports

HELP = Abilities(flags=frozenset())


@pytest.fixture
def taken_port():
    """A port that somebody listens on."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_ports_that_are_not_given_are_chosen_and_different(tmp_path):
    """Given ones stay, and are not given out again."""
    given = free_ports(1)[0]
    options = ServerOptions(repositories=(tmp_path,), grpc_port=given).checked()

    ports = {options.http_port, options.grpc_port, options.metrics_port}
    assert len(ports) == 3
    assert options.grpc_port == given


def test_free_ports_are_below_those_of_outgoing_connections():
    """Else a connection could take the port while models load; Linux gives them from 32768 up."""
    assert PORTS.stop <= 32_768
    assert all(port in PORTS for port in free_ports(5))


def test_free_ports_skips_those_it_is_told_to_skip_and_says_when_none_are_left():
    """With all but two excluded, two are found, and three are not."""
    last = PORTS[-40:]
    others = [port for port in PORTS if port not in last]
    found = free_ports(2, but=others)
    assert set(found) <= set(last)

    with pytest.raises(ServerError, match="free ports"):
        free_ports(41, but=others)


def test_a_port_in_use_is_named(tmp_path, taken_port):
    """Before a server is started, as it would find out only after loading its models."""
    with pytest.raises(ServerError, match=f"port {taken_port} of 127.0.0.1 is in use"):
        ServerOptions(repositories=(tmp_path,), http_port=taken_port).checked()


def test_a_port_that_cannot_be_had_says_why(tmp_path):
    """An address of another machine is not one in use, whether ports are given or not."""
    for given in ({"http_port": 20_000}, {}):
        with pytest.raises(
            ServerError, match=r"port \d+ of 192\.0\.2\.1 cannot be had: Cannot assign"
        ):
            ServerOptions(repositories=(tmp_path,), host="192.0.2.1", **given).checked()


def test_a_port_is_for_one_service(tmp_path):
    """The server would find out after loading its models."""
    (port,) = free_ports(1)
    with pytest.raises(ConfigError, match=f"port {port} is given twice"):
        ServerOptions(repositories=(tmp_path,), http_port=port, metrics_port=port).checked()


def test_a_name_becomes_the_address_that_it_has(tmp_path):
    """At a name Triton's HTTP does not listen, and would never be ready."""
    options = ServerOptions(repositories=(tmp_path,), host="localhost").checked()
    assert (options.host, options.local_host) == ("127.0.0.1", "127.0.0.1")
    with pytest.raises(ConfigError, match=r"host 'no\.such\.host\.invalid' has no address"):
        ServerOptions(repositories=(tmp_path,), host="no.such.host.invalid").checked()


@pytest.mark.parametrize("name", ["http_port", "grpc_port", "metrics_port"])
@pytest.mark.parametrize("port", [-1, 65_536, 10**30])
def test_a_port_that_is_none_is_refused(tmp_path, name, port):
    """With what one may be."""
    with pytest.raises(ConfigError, match=f"port {port} is none; expected 1 to 65535"):
        ServerOptions(repositories=(tmp_path,), **{name: port}).checked()


def test_a_negative_exit_timeout_is_refused(tmp_path):
    """As other numbers that make no sense."""
    options = ServerOptions(repositories=(tmp_path,), exit_timeout_s=-1)
    with pytest.raises(ConfigError, match="exit timeout of -1 s; expected 0 or more"):
        options.checked()


def test_a_model_is_no_repository(tmp_path):
    """The folder above it is, and the message names that."""
    (tmp_path / "config.pbtxt").touch()
    with pytest.raises(ConfigError, match=f"is one model; .* above it, {tmp_path.parent}$"):
        ServerOptions(repositories=(tmp_path,)).checked()


def test_a_repository_must_be_a_folder(tmp_path):
    """The message names it."""
    with pytest.raises(ConfigError, match="nowhere is not a folder"):
        ServerOptions(repositories=(tmp_path / "nowhere",)).checked()


@pytest.mark.parametrize("argument", ["--http-port=1", "--http-port", "--model-store=x"])
def test_an_argument_that_has_an_option_is_refused(tmp_path, argument):
    """Two values for one thing would leave us waiting at the wrong port."""
    with pytest.raises(ConfigError, match=r"sets --.* itself"):
        ServerOptions(repositories=(tmp_path,), arguments=(argument,)).checked()


def test_flags_have_absolute_repositories_and_end_with_the_further_arguments(tmp_path, monkeypatch):
    """The server's working directory is another than ours."""
    monkeypatch.chdir(tmp_path)
    here = ServerOptions(
        repositories=(tmp_path / "a", tmp_path.relative_to(tmp_path) / "b"),
        http_port=1,
        grpc_port=2,
        metrics_port=3,
        arguments=("--log-info=false",),
    )

    flags = here.flags(HELP)
    assert flags[0] == f"--model-repository={tmp_path}/a"
    assert flags[1] == f"--model-repository={tmp_path}/b"
    assert {"--http-port=1", "--grpc-port=2", "--metrics-port=3"} < set(flags)
    assert flags[-1] == "--log-info=false"


def test_a_key_restricts_the_control_of_models_by_both_protocols():
    """Without one nothing is restricted."""
    options = ServerOptions(repositories=(Path("/m"),))
    keyed = f"model-repository:{KEY_HEADER}=abc"
    assert [flag for flag in options.flags(HELP) if "restricted" in flag] == []
    assert [
        flag for flag in replace(options, control_key="abc").flags(HELP) if "restricted" in flag
    ] == [
        f"--http-restricted-api={keyed}",
        f"--grpc-restricted-protocol={keyed}",
    ]


LOADS = "model-repository"
OURS = {LOADS: (KEY_HEADER, "abc")}


@pytest.mark.parametrize(
    ("given", "kept", "keys"),
    [
        (["--http-restricted-api=model-repository:a=1"], ["grpc"], {LOADS: ("a", "1")}),
        (
            ["--http-restricted-api", "health,model-repository:a=1=2"],
            ["grpc"],
            {"health": ("a", "1=2"), LOADS: ("a", "1=2")},
        ),
        (["--grpc-restricted-protocol=model-repository:a=1"], ["http"], OURS),
        (["--http-restricted=model-repository:a=1"], ["grpc"], {LOADS: ("a", "1")}),
        (["--grpc-r", "certificate.pem"], ["http", "grpc"], OURS),
        (
            [
                "--http-restricted-api=model-repository:a=1",
                "--http-restricted-api=health:a=2",
            ],
            ["grpc"],
            {LOADS: ("a", "1"), "health": ("a", "2")},
        ),
        (
            ["--http-restricted-api=statistics:model-repository=1"],
            ["http", "grpc"],
            {**OURS, "statistics": ("model-repository", "1")},
        ),
        (
            [
                "--http-restricted-api=model-repository:a=1",
                "--grpc-restricted-protocol=model-repository:b=2",
            ],
            [],
            {LOADS: ("a", "1")},
        ),
    ],
)
def test_a_key_of_ones_own_takes_the_place_of_ours_for_its_protocol_alone(given, kept, keys):
    """The other one stays closed. Ours shows what HTTP asks for, whoever says so."""
    options = ServerOptions(repositories=(), control_key="abc", arguments=tuple(given))
    ours = [flag[2:6] for flag in options.flags(HELP) if flag.endswith("=abc")]
    assert ours == kept
    assert options.http_keys == keys


def test_without_a_key_none_is_shown():
    """Nothing was restricted."""
    assert ServerOptions(repositories=(), arguments=("--log-info=0",)).http_keys == {}


@pytest.mark.parametrize(
    ("host", "http", "grpc"),
    [("127.0.0.1", "127.0.0.1", "127.0.0.1"), ("::1", "ipv6:::1", "[::1]")],
)
def test_flags_have_an_address_as_each_service_takes_it(host, http, grpc):
    """HTTP marks IPv6 by a word, gRPC by brackets."""
    flags = set(ServerOptions(repositories=(), host=host).flags(HELP))
    assert {f"--{name}-address={http}" for name in ("http", "metrics")} < flags
    assert f"--grpc-address={grpc}" in flags


@pytest.mark.parametrize(
    ("host", "local"), [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.1.2.3", "10.1.2.3")]
)
def test_this_machine_reaches_a_server_on_all_interfaces_by_loopback(host, local):
    """A server bound to one address is reached there."""
    assert ServerOptions(repositories=(), host=host).local_host == local


@pytest.mark.parametrize(
    ("arguments", "metrics"),
    [
        ((), True),
        (("--allow-metrics=true",), True),
        (("--allow-metrics", "ON"), True),
        (("--allow-metrics=false",), False),
        (("--allow-metrics", "0"), False),
        (("--allow-met=off", "--allow-grpc=true"), False),
        (("--allow-metrics=false", "--allow-metrics=1", "--allow-grpc=false"), True),
    ],
)
def test_a_server_has_metrics_unless_the_last_word_on_them_says_no(arguments, metrics):
    """What else is allowed or not does not matter."""
    assert ServerOptions(repositories=(), arguments=arguments).has_metrics is metrics


@pytest.mark.parametrize("name", ["one two", 'a"b', "it's", "cost$", "a&b", "a;b", "a(1)"])
def test_paths_that_a_shell_would_change_are_refused(tmp_path, name):
    """Triton 2.51 hangs over a Python model there."""
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=r"by a shell .* rename the folder, or make a symbolic"):
        ServerOptions(repositories=(tmp_path / name,)).checked()

    for backend in ("ge", "python"):
        config = tmp_path / name / "config.pbtxt"
        config.write_text(f'max_batch_size: 8\nbackend: "{backend}"\n')
        with pytest.raises(ConfigError, match="by a shell"):
            ServerOptions(repositories=(tmp_path,)).checked()
    config.write_text('platform: "ensemble"\n')  # which has no process
    ServerOptions(repositories=(tmp_path,)).checked()


def test_a_link_to_a_repository_stays_one(tmp_path):
    """Its own path may be one that the host cannot take."""
    link, folder = tmp_path / "models", tmp_path / "my models"
    folder.mkdir()
    link.symlink_to(folder)
    options = ServerOptions(repositories=(link,)).checked()
    assert f"--model-repository={link}" in options.flags(HELP)


def test_flags_that_only_some_releases_know_are_given_to_those(tmp_path):
    """Clients' shared memory is always on elsewhere; other options are refused there."""
    newer = Abilities.read("  --allow-client-shm\n  --grpc-max-response-pool-size\n")
    options = ServerOptions(repositories=(tmp_path,), client_shm=True)
    assert "--allow-client-shm=true" in options.flags(newer)
    assert not any("client-shm" in flag for flag in options.flags(HELP))
    pooled = replace(options, grpc_response_pool=100, client_shm=False)
    assert "--grpc-max-response-pool-size=100" in pooled.flags(newer)
    assert not any("client-shm" in flag for flag in pooled.flags(newer))
    with pytest.raises(ConfigError, match=r"from Triton 2\.56 \(container 25\.03\) on"):
        pooled.flags(HELP)
