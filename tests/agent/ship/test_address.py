"""Addresses of collectors, as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_agent.ship.address import HttpAddress

ADDRESS = HttpAddress("collector.example", 8750, is_tls=False)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://collector.example:8750", ADDRESS),
        ("http://collector.example:8750/", ADDRESS),
        ("http://10.0.0.1", HttpAddress("10.0.0.1", 80, False)),
        ("https://Collector.Example", HttpAddress("collector.example", 443, True)),
        ("https://h/a b/ü/%41/", HttpAddress("h", 443, True, "/a%20b/%C3%BC/%41")),
        ("http://[2001:db8::1]:1", HttpAddress("2001:db8::1", 1, False)),
        ("http://grün.example", HttpAddress("xn--grn-ioa.example", 80, False)),
        ("http://u:p%40s@h", HttpAddress("h", 80, False, "", "Basic dTpwQHM=")),
        ("http://u@h", HttpAddress("h", 80, False, "", "Basic dTo=")),
    ],
)
def test_a_url_gives_host_port_path_and_credentials(url: str, address: HttpAddress) -> None:
    assert HttpAddress.parse(url) == address


@pytest.mark.parametrize(
    "url",
    ["", "collector:8750", "ftp://h", "http://", "http://h:x", "http://h:99999", "http://h?q=1"]
    + ["http://h/#f", "http://a..b", "http://" + "a" * 64, "http://a b", "http://[::1", "//h"],
)
def test_what_is_no_address_is_a_value_error(url: str) -> None:
    with pytest.raises(ValueError, match="."):
        HttpAddress.parse(url)


@given(st.text(max_size=40))
def test_no_text_does_anything_else(text: str) -> None:
    for url in (text, f"http://{text}", f"https://h/{text}", f"http://{text}@h:1"):
        try:
            address = HttpAddress.parse(url)
        except ValueError:
            continue
        for part in (address.authority, address.path, address.authorization or ""):
            assert part.isascii() and part.isprintable()


@pytest.mark.parametrize(
    ("address", "authority"),
    [
        (ADDRESS, "collector.example:8750"),
        (HttpAddress("h", 443, True), "h"),
        (HttpAddress("h", 80, True), "h:80"),
        (HttpAddress("fe80::1%eth0", 80, False), "[fe80::1]"),
    ],
)
def test_the_host_header_has_the_port_where_it_is_not_the_usual(
    address: HttpAddress, authority: str
) -> None:
    assert address.authority == authority


def test_a_password_is_never_shown() -> None:
    address = HttpAddress.parse("http://user:secret@h/prefix")
    assert address.shown("/v1/ingest") == "http://h/prefix/v1/ingest"
    assert address.authorization == "Basic dXNlcjpzZWNyZXQ="
