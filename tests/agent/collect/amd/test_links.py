"""xGMI links: which are rows, and in which units."""

from gpuwarden_agent.collect.amd.gpu_metrics import xgmi_rows

WAY = {"xgmi_link_width": 16, "xgmi_link_speed": 32}


def test_a_link_with_a_state_is_a_row_that_says_it() -> None:
    metrics = WAY | {
        "xgmi_link_status": [1, 0, None, 2, None, None, None, None],
        "xgmi_read_data_acc": [3, 0, 0, 0, 0, 0, 0, 0],
        "xgmi_write_data_acc": [2, 0, 0, 0, 0, 0, 0, 0],
    }
    up, down = xgmi_rows(metrics)
    assert up == {
        "link_type": "xgmi",
        "link": 0,
        "remote_type": "gpu",
        "active": True,
        "speed_bytes_per_second": 64e9,
        "tx_bytes_total": 2048,
        "rx_bytes_total": 3072,
    }
    assert (down["link"], down["active"], down["tx_bytes_total"]) == (1, False, 0)


def test_without_states_a_link_is_a_row_once_it_carried_something() -> None:
    metrics = {"xgmi_read_data_acc": [0, 5, None], "xgmi_write_data_acc": [0, 0, 7]}
    rows = xgmi_rows(metrics)
    assert [row["link"] for row in rows] == [1, 2]
    assert all(row["active"] is None for row in rows)
    assert all(row["speed_bytes_per_second"] is None for row in rows)
    assert (rows[1]["rx_bytes_total"], rows[1]["tx_bytes_total"]) == (None, 7168)


def test_a_link_whose_state_is_not_to_be_had_counts_by_what_it_carried() -> None:
    metrics = {"xgmi_link_status": [2, 2], "xgmi_read_data_acc": [1, 0]}
    (row,) = xgmi_rows(metrics)
    assert (row["link"], row["active"]) == (0, None)


def test_a_board_without_links_has_no_rows() -> None:
    assert xgmi_rows({}) == []
    assert xgmi_rows(WAY) == []
    assert xgmi_rows(WAY | {"xgmi_read_data_acc": [0] * 8, "xgmi_write_data_acc": [0] * 8}) == []
