"""What an operator decides: the run's terms, when rounds open and close, and the limits."""

import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hushrec.errors import ParameterError
from hushrec.offers import run_options
from hushrec.options import with_defaults
from hushrec.protocols import default_protocol, find_protocol

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TermsSettings(BaseModel):
    """`[terms]`: fixed when the database is made; every device accepts them once.

    Besides these four, every option of the protocol and of the model that is the same for all devices.
    """

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())

    run: Count | None = None  # its number in this database: one more than the stored run's begins a next run
    protocol: str = ""  # as in training: `masked`, or `sdcf` for a model that only that speaks
    model: str | None = None  # None: the first that the protocol speaks
    expected_devices: Count = 1000  # n: nobody tells the server how many there will be

    @model_validator(mode="before")
    @classmethod
    def _choose_protocol(cls, given: Any) -> Any:
        chosen = not isinstance(given, dict) or "protocol" in given
        return given if chosen else {**given, "protocol": default_protocol(given.get("model"))}

    @property
    def model_name(self) -> str:
        return self.model or find_protocol(self.protocol).models[0]

    @property
    def given(self) -> dict[str, Any]:
        """The options that the operator has chosen, as they are declared; others are refused."""
        known, model = run_options(self.protocol, self.model_name), self.model_name
        if model not in find_protocol(self.protocol).models:
            raise ParameterError(f"terms.model must be one that protocol {self.protocol} speaks, got {model}.")
        unknown = [name for name in self.model_extra or {} if name not in known]
        if unknown:
            raise ParameterError(f"terms.{unknown[0]} must be an option of the run, one of {', '.join(known)}.")
        return {name: known[name].checked(value) for name, value in (self.model_extra or {}).items()}

    @property
    def options(self) -> dict[str, Any]:
        """All options of the run: those that were chosen, and the defaults of the others."""
        return with_defaults(run_options(self.protocol, self.model_name).values(), self.given)


class RoundSettings(_Table):
    """`[rounds]`: when a round opens, and when it closes."""

    automatic: bool = True  # else only an admin opens rounds
    min_devices: Count = 2
    quorum: Annotated[float, Field(gt=0, le=1)] = 0.8  # share of the devices whose reports close a round
    grace_seconds: NotNegative = 10  # that a round with a quorum waits for the others, whose reports are on their way
    deadline_seconds: Positive = 120  # closes a round with what has arrived, be it nothing
    missed_rounds: Count = 3  # a device that was not heard of in so many rounds does not count until it returns
    pause_seconds: NotNegative = 0


class LimitSettings(_Table):
    """`[limits]`: what one device, and all of them together, may ask of the server."""

    requests_per_second: Positive = 50  # per device, on average: ten short rounds
    burst: Count = 200  # per device, at once
    enrolments_per_second: Positive = 200
    waiting_reports: Count = 256  # above it, devices are told to come back later
    waiting_megabytes: Positive = 512  # of all reports that are on their way
    waiting_downloads: Count = 64  # announcements sent at the same time
    body_seconds: Positive = 30  # for a request's head, and again for its body


class Settings(_Table):
    """Everything in the file that `--config` names."""

    open_enrolment: bool = False
    terms: TermsSettings = Field(default_factory=TermsSettings)
    rounds: RoundSettings = RoundSettings()
    limits: LimitSettings = LimitSettings()


def read_settings(path: Path | None, **terms: Any) -> Settings:
    """Settings from a TOML file, with these terms in place of its own.

    What is not named has its default, and what we do not know is refused.
    """
    try:
        found = {} if path is None else tomllib.loads(path.read_text("utf-8"))
        return Settings.model_validate({**found, "terms": {**found.get("terms", {}), **terms}} if terms else found)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ParameterError(f"{path} must be a readable TOML file: {reason}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise ParameterError(f"{path}: {name}: {first['msg']}.") from None
