"""`nvidia-smi -q -x`, schemas v10 to v13, one document or many."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_importing.model import ImportTally, Origin
from gpuwarden_importing.smi_fields import INSTANT_NOTE
from gpuwarden_importing.smi_xml import documents, read

DOCUMENT = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <timestamp>Fri Aug  4 11:44:30 2023</timestamp>
  <driver_version>535.54.03</driver_version>
  <attached_gpus>1</attached_gpus>
  <gpu id="00000000:3B:00.0">
    <product_name>NVIDIA A100</product_name>
    <uuid>GPU-1</uuid>
    <fb_memory_usage><total>81920 MiB</total><used>50 MiB</used></fb_memory_usage>
    <utilization><gpu_util>N/A</gpu_util></utilization>
    <clocks_throttle_reasons>
      <clocks_throttle_reason_gpu_idle>Not Active</clocks_throttle_reason_gpu_idle>
      <clocks_throttle_reason_sw_thermal_slowdown>Active</clocks_throttle_reason_sw_thermal_slowdown>
    </clocks_throttle_reasons>
    <power_readings><power_draw>67.03 W</power_draw><power_limit>400.00 W</power_limit>
      <enforced_power_limit>300.00 W</enforced_power_limit></power_readings>
    <ecc_errors><volatile><sram_uncorrectable_parity>1</sram_uncorrectable_parity>
      <sram_uncorrectable_secded>2</sram_uncorrectable_secded></volatile></ecc_errors>
    <voltage><graphics_volt>912.500 mV</graphics_volt></voltage>
    <processes><process_info><pid>42</pid><type>C</type>
      <process_name>/usr/bin/python3 --key=s3cret</process_name>
      <used_memory>5 MiB</used_memory></process_info></processes>
  </gpu>
</nvidia_smi_log>
"""


@pytest.mark.parametrize(("average", "watts"), [("N/A", 81.5), ("70.00 W", 70.0)])
def test_a_gpu_without_an_average_has_its_instant_power(
    imported, average: str, watts: float
) -> None:
    readings = (
        f"<gpu_power_readings><average_power_draw>{average}</average_power_draw>"
        "<instant_power_draw>81.50 W</instant_power_draw></gpu_power_readings>"
    )
    begin, end = DOCUMENT.index("<power_readings>"), DOCUMENT.index("<ecc_errors>")
    found = imported(read, DOCUMENT[:begin] + readings + DOCUMENT[end:])
    (sample,) = found["gpu_samples"]
    assert (sample["power_watts"], sample["power_instant_watts"]) == (watts, 81.5)
    assert (INSTANT_NOTE in found.tally.notes) == (average == "N/A")


def test_a_document_becomes_rows(imported) -> None:
    found = imported(read, DOCUMENT)
    (sample,) = found["gpu_samples"]
    assert sample == {
        "ts": 1691149470000, "node": "n1", "gpu": 0, "gpu_uuid": "GPU-1",
        "memory_total_bytes": 81920 * 2**20, "memory_used_bytes": 50 * 2**20,
        "clocks_event_reasons": 0x20, "power_watts": 67.03, "power_limit_watts": 300.0,
    }  # fmt: skip
    assert found["gpu_health_samples"][0]["sram_uncorrected_volatile_total"] == 3
    assert found["process_samples"][0]["process_name"] == "python3"
    assert found["gpus"][0]["pci_bus_id"] == "0000:3b:00.0"
    assert found["nodes"][0]["driver_version"] == "535.54.03"
    assert found.tally.unmapped == {"voltage/graphics_volt": 1}


def test_documents_of_a_loop_are_read_one_after_another(imported) -> None:
    later = DOCUMENT.replace("11:44:30", "11:44:31")
    found = imported(read, "noise\n" + DOCUMENT + later.replace("\n", ""))
    assert [row["ts"] for row in found["gpu_samples"]] == [1691149470000, 1691149471000]


def test_a_gpu_that_is_lost_keeps_its_identity(imported) -> None:
    lost = DOCUMENT.replace("11:44:30", "11:44:31").replace("GPU-1", "GPU is lost")
    found = imported(read, DOCUMENT + lost)
    assert [row["gpu_uuid"] for row in found["gpu_samples"]] == ["GPU-1", "GPU-1"]
    assert [row["gpu_uuid"] for row in found["gpus"]] == ["GPU-1"]
    (alone,) = imported(read, lost)["gpus"]
    assert alone["gpu_uuid"] == "pci-0000:3b:00.0@n1"


def test_a_document_that_was_cut_short_is_counted_and_the_next_is_read(imported) -> None:
    found = imported(read, DOCUMENT[:400] + "\n" + DOCUMENT + DOCUMENT[:300])
    assert len(found["gpu_samples"]) == 1
    assert found.tally.skipped["a document that is cut short"].count == 2


def test_entities_are_not_expanded(imported) -> None:
    bomb = DOCUMENT.replace(
        'SYSTEM "nvsmi_device_v12.dtd"', '[<!ENTITY a "x"><!ENTITY b "&a;&a;">]'
    ).replace("NVIDIA A100", "&b;")
    found = imported(read, bomb)
    assert found.tables == {}
    assert [s.count for s in found.tally.skipped.values()] == [1]


def test_a_document_without_a_time_is_of_the_time_that_was_named(imported) -> None:
    found = imported(read, DOCUMENT.replace("<timestamp>Fri Aug  4 11:44:30 2023</timestamp>", ""))
    assert found["gpu_samples"][0]["ts"] == 1_780_000_000_000
    assert any("no timestamp" in note for note in found.tally.notes)


def test_mig_devices_are_gpus_of_their_own(imported, data) -> None:
    found = imported(read, (data / "nvidia_smi_xml" / "a100-sxm4-v12.xml").read_text())
    whole, *parts = found["gpu_samples"]
    assert whole["power_watts"] == 67.03
    assert whole.get("util_percent") is None
    assert {p["mig_instance"] for p in parts} == {"3/0", "4/0", "5/0", "6/0"}
    assert {p["memory_used_bytes"] for p in parts} == {12 * 2**20}
    assert {g["parent_gpu_uuid"] for g in found["gpus"][1:]} == {whole["gpu_uuid"]}


@pytest.mark.parametrize(
    ("name", "watts", "limit", "celsius"),
    [("rtx-4000-sff-ada-v13", 8.81, 70.0, 38.0), ("rtx-3060-v12", 11.6, 170.0, None),
     ("rtx-3080-v12", 22.78, 336.0, None), ("tesla-t4", 26.78, 70.0, 40.0),
     ("gtx-1660-ti", 8.93, 130.0, None), ("quadro-p2000-v12", 4.61, 75.0, None),
     ("gtx-1070-ti", None, None, 39.0)],
)  # fmt: skip
def test_captures_of_all_schemas_are_read(imported, data, name, watts, limit, celsius) -> None:
    found = imported(read, (data / "nvidia_smi_xml" / f"{name}.xml").read_text())
    row = found["gpu_samples"][0]
    assert (row.get("power_watts"), row.get("power_limit_watts")) == (watts, limit)
    assert celsius is None or row["temperature_celsius"] == celsius
    assert found.tally.skipped == {}


@given(st.lists(st.sampled_from(["<nvidia_smi_log>", "</nvidia_smi_log>", "<gpu>", "</gpu>", "\n",
                                 "<uuid>x</uuid>", "&b;", "\x00", "<pid>", "é"]), max_size=30))  # fmt: skip
def test_rubbish_in_xml_raises_nothing(pieces) -> None:
    text = "".join(pieces)
    list(read(iter(text.splitlines(keepends=True)), Origin(node="n1", at_ms=1), ImportTally()))
    for document, _ in documents(iter(text.splitlines(keepends=True)), ImportTally()):
        assert document.count("</nvidia_smi_log>") == 1
