"""The optional dependencies (extras) of hushrec, as in `pip install 'hushrec[report,service]'`."""

from importlib.util import find_spec

EXTRAS = {
    "ray": ("ray",),
    "report": ("jinja2", "matplotlib"),
    "service": ("fastapi", "prometheus_client", "psycopg", "sqlalchemy", "uvicorn"),
}


def is_installed(extra: str) -> bool:
    """Return whether every package of an extra can be imported."""
    return all(find_spec(module) is not None for module in EXTRAS[extra])


def extra_of(module: str | None) -> str | None:
    """Return the name of the extra that installs this module, or None if no extra does or `module` is None."""
    root = (module or "").partition(".")[0]
    also = {"starlette": "service", "markupsafe": "report"}
    return next((extra for extra, modules in EXTRAS.items() if root in modules), also.get(root))
