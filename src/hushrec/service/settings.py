"""The operator's settings: the run's terms, when rounds open and close, and the server's limits."""

import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from hushrec.errors import ParameterError
from hushrec.offers import run_options
from hushrec.options import with_defaults
from hushrec.protocols import by_usual, default_protocol, find_protocol

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
MOST_DEADLINE = 12 * 3600  # seconds


def _short_enough(seconds: float) -> float:
    if seconds > MOST_DEADLINE:
        raise ValueError(
            f"it must be at most {MOST_DEADLINE} (12 hours), because devices delete the secrets of an attempt after a"
            f" day, got {seconds:g}. Choose a shorter deadline"
        )
    return seconds


Deadline = Annotated[Positive, AfterValidator(_short_enough)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TermsSettings(BaseModel):
    """The table `[terms]`: fixed when a run is made, and accepted by every device when it joins.

    Besides these four fields, the table may set options of the protocol and the model that are the same for all
    devices.
    """

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())

    run: Count | None = None  # the run's number in this database; one more than the stored number begins a next run
    protocol: str = ""  # if not given, the default protocol of the model, as in training
    model: str | None = None  # if not given, the protocol's first model
    expected_devices: Count = 1000  # number of devices that the terms assume; in `masked` the most in one sum (n_max)

    @model_validator(mode="before")
    @classmethod
    def _choose_protocol(cls, given: Any) -> Any:
        chosen = not isinstance(given, dict) or "protocol" in given
        return given if chosen else {**given, "protocol": default_protocol(given.get("model"))}

    @property
    def model_name(self) -> str:
        """The name of the model: the operator's choice, or else the protocol's first model."""
        return self.model or find_protocol(self.protocol).models[0]

    @property
    def given(self) -> dict[str, Any]:
        """The values of the options that the operator set; raises `ParameterError` for an unknown or invalid option."""
        declared, model = run_options(self.protocol, self.model_name), self.model_name
        if model not in find_protocol(self.protocol).models:
            models = ", ".join(find_protocol(self.protocol).models)
            raise ParameterError(f"terms.model must be a model of protocol {self.protocol} ({models}), got {model}.")
        known = {name: option for name, option in declared.items() if not option.is_simulated}
        for name in self.model_extra or {}:
            if name in declared and name not in known:
                raise ParameterError(f"[terms] must not have {name}, which is for simulated runs only. Remove it.")
            if name not in known:
                has = ", ".join([*type(self).model_fields, *known])
                raise ParameterError(f"[terms] has no option {name}; it has {has}. Correct or remove it.")
        return {name: known[name].checked(value) for name, value in (self.model_extra or {}).items()}

    @property
    def options(self) -> dict[str, Any]:
        """All options of the run: the operator's values, and the defaults of options that the operator left out."""
        return with_defaults(run_options(self.protocol, self.model_name).values(), self.given)


class RoundSettings(_Table):
    """The table `[rounds]`: when rounds open and close. docs/service.md explains every setting."""

    automatic: bool = True  # False: only the operator opens rounds
    min_devices: Count = 2  # number of devices that must be present before a round opens
    early_fraction: Fraction = 0.8  # fraction of present devices whose reports let a phase close before its deadline
    grace_seconds: NotNegative = 10  # how long such a phase still waits for the reports of the other devices
    deadline_seconds: Deadline = 120  # after this time a phase closes, even with fewer reports
    missed_rounds: Count = 3  # after this many rounds without a request, a device is not present until its next request
    pause_seconds: NotNegative = 0  # time between two rounds


class LimitSettings(_Table):
    """The table `[limits]`: limits on the requests of one device, and of all devices; see docs/service.md."""

    requests_per_second: Positive = 50  # average rate of one device
    burst: Count = 200  # requests that one device may send at once, before the average rate applies
    enrolments_per_second: Positive = 200  # average rate of all devices together
    waiting_reports: Count = 256  # reports being received or stored; further ones are refused with Retry-After
    waiting_megabytes: Positive = 512  # total size of the reports being received; further ones are refused
    waiting_downloads: Count = 64  # most inbox replies at once (others wait); most public tables (others are refused)
    body_seconds: Positive = 30  # time limit for the head of a request, and again for its body


class Settings(_Table):
    """The content of the file that `--config` names."""

    open_enrolment: bool = False  # True: devices may join without an invitation
    terms: TermsSettings = Field(default_factory=TermsSettings)
    rounds: RoundSettings = RoundSettings()
    limits: LimitSettings = LimitSettings()


def read_settings(path: Path | None, **terms: Any) -> Settings:
    """Return the settings in a TOML file; `terms` override the values in its table `[terms]`.

    Raise `ParameterError` for an unknown name or an invalid value.
    """
    try:
        found = {} if path is None else tomllib.loads(path.read_text("utf-8"))
        if isinstance(own := found.get("terms", {}), dict):
            found = {**found, "terms": {**own, **terms}}
        return Settings.model_validate(found)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ParameterError(f"{path} must be a readable TOML file: {reason}.") from None
    except ValidationError as error:
        raise ParameterError(_described(error.errors()[0], "" if path is None else f" in {path}")) from None


def _described(error: Any, where: str) -> str:
    """Return the sentence for an error of pydantic; `where` names the file."""
    place, kind = [str(part) for part in error["loc"]], error["type"]
    name = ".".join(place)
    if kind == "extra_forbidden":
        return _unknown(place, where, is_table=isinstance(error["input"], dict))
    if kind in _MUST:
        return f"{name}{where} must be {_MUST[kind].format(**error.get('ctx', {}))}, got {_as_toml(error['input'])}."
    reason = error["msg"].removeprefix("Value error, ").rstrip(".")
    return f"setting {name}{where} is invalid: {reason}."


_MUST = {
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "a table"),
    "string_type": "a text",
    "finite_number": "finite",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
}


def _as_toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _unknown(place: list[str], where: str, *, is_table: bool) -> str:
    """Return the sentence about a name that the settings do not have at this place."""
    *table, name = place
    if table:
        renamed = " Its name is now rounds.early_fraction." if place == ["rounds", "quorum"] else ""
        has = ", ".join(_TABLES[table[0]].model_fields)
        return f"[{table[0]}]{where} has no setting {name}; it has {has}.{renamed or ' Correct or remove it.'}"
    tables = [f"[{name}]" for name in _TABLES]
    if is_table:
        return f"there is no table [{name}]{where}; the tables are {', '.join(tables[:-1])} and {tables[-1]}."
    for owner, settings in _TABLES.items():
        options = {name for one in by_usual() for model in one.models for name in run_options(one.name, model)}
        if name in settings.model_fields or (owner == "terms" and name in options):
            return f"{name}{where} belongs in the table [{owner}]. Move it below the line [{owner}]."
    return f"there is no setting {name}{where} outside the tables {', '.join(tables[:-1])} and {tables[-1]}. Remove it."


_TABLES: dict[str, type[BaseModel]] = {"terms": TermsSettings, "rounds": RoundSettings, "limits": LimitSettings}
