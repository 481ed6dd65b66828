"""What npu-smi prints becomes gauges; what it does not say costs one line of the log."""

import time

from builders.npu_smi import ECC, MAPPING, TEMPERATURE, fake_npu_smi
from ge_backend.metrics import Recorder


def read(environment, devices, until, **changes):
    """Read until the gauges are there, or for half a minute; return them by name and labels."""
    from ge_backend.host.npu_smi import open_sensors

    recorder = Recorder()
    (sensors,) = open_sensors(devices, environment | changes, recorder)
    found = {}
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not until(found):
        found |= {
            (name, *dict(labels).values()): v for (name, labels), v in recorder.drain().items()
        }
        time.sleep(0.01)
    sensors.close()
    return found


def test_a_chip_has_the_card_that_npu_smi_says():
    """Neither a card's number nor a chip's is the device's; a part of the devices may be hidden."""
    from ge_backend.host.npu_smi import place_of

    assert place_of(0, "", MAPPING) == ("4", "0")
    assert place_of(2, "", MAPPING) == ("5", "1")
    assert place_of(1, "0,2", MAPPING) == ("5", "1")
    assert place_of(3, "", MAPPING) is None
    assert place_of(2, "0,2", MAPPING) is None
    assert place_of(0, "0-3", MAPPING) is None
    assert place_of(0, "", "dcmi model initialized failed") is None


def test_temperatures_of_servers_and_cards():
    """The chip's, not the board's."""
    from ge_backend.host.npu_smi import read_temperature

    assert read_temperature(TEMPERATURE) == 39
    assert read_temperature("\tTemperature (C)                : -3\n") == -3
    assert read_temperature("\tNPU Temperature (C)            : NA\n") is None
    assert read_temperature("") is None


def test_errors_of_all_memory_add_up():
    """Those of now; not those of a chip's whole life, and not pages."""
    from ge_backend.host.npu_smi import read_ecc

    assert read_ecc(ECC) == {"corrected": 4, "uncorrected": 2}
    assert read_ecc("This device does not support querying ecc.\n") == {}


def test_what_is_printed_is_recorded(tmp_path, pb_utils):
    """The right card and chip are asked; other devices are not."""
    environment = fake_npu_smi(tmp_path, mapping=MAPPING, temp=TEMPERATURE, ecc=ECC)
    found = read(
        environment,
        ["cpu", "npu:1"],
        lambda found: len(found) == 3,
        ASCEND_RT_VISIBLE_DEVICES="0,2",
    )
    assert found == {
        ("ge_device_temperature_celsius", "npu:1"): 39,
        ("ge_device_ecc_errors", "npu:1", "corrected"): 4,
        ("ge_device_ecc_errors", "npu:1", "uncorrected"): 2,
    }
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["info -m", "info -t temp -i 5 -c 1", "info -t ecc -i 5 -c 1"]


def test_what_is_not_understood_is_said_once(tmp_path, monkeypatch, caplog):
    """It stays away alone: what is understood is still recorded, and all is tried again."""
    from ge_backend.host import npu_smi

    monkeypatch.setattr(npu_smi, "PERIOD_S", 0.02)
    environment = fake_npu_smi(tmp_path, mapping=MAPPING, temp=TEMPERATURE, ecc="not supported\n")
    asked = tmp_path / "asked"
    found = read(
        environment, ["npu:0"], lambda _: asked.exists() and asked.read_text().count("ecc") > 2
    )
    assert found == {("ge_device_temperature_celsius", "npu:0"): 39}
    said = [line for line in caplog.messages if "does not tell" in line]
    assert said == ["npu-smi does not tell the ECC errors of npu:0: not supported"]


def test_one_that_hangs_holds_nothing_up(tmp_path, monkeypatch, caplog):
    """It is ended after a time, which the log says."""
    from ge_backend.host import npu_smi

    monkeypatch.setattr(npu_smi, "TIMEOUT_S", 0.2)
    environment = fake_npu_smi(tmp_path)
    (tmp_path / "npu-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    started = time.monotonic()
    read(environment, ["npu:0"], lambda _: caplog.messages)
    assert time.monotonic() - started < 20
    assert "timed out" in caplog.text


def test_without_npu_smi_there_is_one_line(tmp_path, caplog):
    """And no thread; a model on another device does not even look."""
    from ge_backend.host.npu_smi import open_sensors

    caplog.set_level("INFO")
    environment = {"PATH": str(tmp_path)}
    assert open_sensors(["cpu", "cuda:0"], environment, Recorder()) == []
    assert caplog.messages == []
    assert open_sensors(["npu:0"], environment, Recorder()) == []
    (line,) = caplog.messages
    assert "there is no npu-smi" in line
