"""Encodes answers as the JSON of Prometheus' HTTP API."""

from typing import Any

from gpuwarden.query import QueryError
from gpuwarden_collector.query.port import Ending

_BATCH_BYTES = 256 * 1024
_TEXTS = ("exposition", "blocks")
"""Kinds that are not JSON."""


class ApiEncoder:
    """Encodes rows of `metric` and values, or of one column of JSON.

    The second column's name is the type of the result: matrix, vector, scalar or string; or `blocks`, which
    `kept_answers.py` reads.
    """

    batch_bytes = _BATCH_BYTES

    def __init__(self, names: list[str]) -> None:
        self._kind = names[-1]
        self._is_first = True

    def begin(self) -> bytes:
        """As of Encoder."""
        if self._kind in _TEXTS:
            return b""
        if self._kind in ("series", "label"):
            return b'{"status":"success","data":['
        opening = "[" if self._kind in ("matrix", "vector") else ""
        return (
            f'{{"status":"success","data":{{"resultType":"{self._kind}","result":{opening}'.encode()
        )

    def rows(self, data: Any) -> bytes:
        """As of Encoder."""
        columns = [column.to_pylist() for column in data.columns]
        if self._kind == "exposition":
            return "".join(f"{line}\n" for line in columns[0]).encode()
        if self._kind == "blocks":
            return "".join(
                f"{metric}\n{of}\n\n" for metric, of in zip(*columns, strict=True)
            ).encode()
        if self._kind in ("series", "label"):
            texts = columns[0]
        elif self._kind in ("scalar", "string"):
            texts = columns[1]
        else:
            key = "values" if self._kind == "matrix" else "value"
            texts = [
                f'{{"metric":{metric},"{key}":{value}}}'
                for metric, value in zip(*columns, strict=True)
                if value is not None
            ]
        if not texts:
            return b""
        comma = "" if self._is_first else ","
        self._is_first = False
        return (comma + ",".join(texts)).encode()

    def end(self, ending: Ending) -> bytes:
        """As of Encoder."""
        if self._kind in _TEXTS:
            return b""
        closing = {"series": "]", "label": "]", "matrix": "]}", "vector": "]}"}.get(self._kind, "}")
        warned = ',"warnings":["results truncated due to limit"]' if ending.truncated else ""
        return f"{closing}{warned}}}".encode()


def encoder_of(form: str, schema: Any) -> ApiEncoder:
    """The encoder of the form `prometheus`. Raises QueryError."""
    if form != "prometheus":
        raise QueryError(f"there is no form {form!r}")
    return ApiEncoder(list(schema.names))
