"""What a pipeline tells its engines, as it stands in `config.pbtxt`: strings; `auto` leaves the choice open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from rose_backend.errors import CheckpointError
from rose_ensemble.matryoshka import check_setting

AUTO = "auto"
_DTYPES = (AUTO, "float32", "bfloat16", "float16")
_LANES = ("auto", "off")


@dataclass(frozen=True)
class EngineSettings:
    """Settings of every engine of a pipeline.

    Attributes:
        dtype: what the model computes in; `auto`: float32 on the CPU, bfloat16 on a GPU.
        attention: an attention backend's name; `auto` measures those installed.
        token_budget: most tokens in a batch; None has it measured at start.
        max_queued_tokens: tokens that may wait; beyond them requests are refused.
        max_queued_requests: requests that may wait.
        lanes: `auto` lets small and bulk requests take turns; `off` serves all in the order of arrival.
        matryoshka: which `dimensions` a request may ask for; see `Matryoshka.told`.

    Raises:
        CheckpointError: names the setting, its value and what is allowed.
    """

    dtype: str = AUTO
    attention: str = AUTO
    token_budget: int | None = None
    max_queued_tokens: int = 2 * 2**20
    max_queued_requests: int = 8192
    lanes: str = AUTO
    matryoshka: str = AUTO

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise CheckpointError(f"dtype {self.dtype!r} is not one of {list(_DTYPES)}")
        if self.lanes not in _LANES:
            raise CheckpointError(f"lanes {self.lanes!r} is not one of {list(_LANES)}")
        check_setting(self.matryoshka)
        if not self.attention.isidentifier():
            raise CheckpointError(f"attention {self.attention!r} is not the name of a backend")
        for name in ("token_budget", "max_queued_tokens", "max_queued_requests"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise CheckpointError(f"{name} is {value}: it must be at least 1")

    def to_parameters(self) -> dict[str, str]:
        """As they are written."""
        return {name: AUTO if value is None else str(value) for name, value in asdict(self).items()}

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> EngineSettings:
        """Read them back; one that is missing has its default.

        Args:
            parameters: strings by name; others are ignored.

        Raises:
            CheckpointError: names the setting and its value.
        """
        values: dict[str, str | int | None] = {}
        for field in fields(cls):
            text = parameters.get(field.name)
            if text is None:
                continue
            if isinstance(field.default, str):
                values[field.name] = text
            elif text == AUTO and field.default is None:
                values[field.name] = None
            else:
                values[field.name] = _whole_number(field.name, text)
        return cls(**values)  # type: ignore[arg-type]


def _whole_number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise CheckpointError(f"{name} is {text!r}: not a whole number") from None
