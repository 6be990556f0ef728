"""The static files of the dashboard and the person's page: no external resources, no inline scripts, no build step."""

from importlib import resources

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


def read_file(name: str) -> bytes:
    """Return the content of a file in this package's folder `static`."""
    return resources.files("hushrec.pages").joinpath("static", name).read_bytes()


def add_page(app: Starlette, name: str) -> None:
    """Add routes for a page: `NAME.html` at `/`, and its scripts and styles below `/static`."""
    files = {"/": f"{name}.html"}
    files |= {f"/static/{file}": file for file in ("base.css", "page.js", f"{name}.css", f"{name}.js")}
    for path, file in files.items():
        content = Response(read_file(file), media_type=_TYPES[file.rpartition(".")[2]], headers=HEADERS)
        app.routes.append(Route(path, content, methods=["GET"], include_in_schema=False))
