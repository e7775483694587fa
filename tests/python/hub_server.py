"""A server that answers as the Hugging Face Hub does, and a second one, of another origin, for its large files."""
import hashlib
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


def git_hash(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Model:
    """One revision, `main`, of one commit; tags are other names of it."""
    files: dict
    commit: str = "c0ffee" * 6 + "abcd"
    tags: tuple = ()
    token: str | None = None  # needed to see it
    is_gated: bool = False


@dataclass
class Hub:
    models: dict = field(default_factory=dict)
    requests: list = field(default_factory=list)  # (server, method, path, token, range)
    is_down: bool = False
    refusals: list = field(default_factory=list)  # (server, status, headers), each for one request
    refused_token: str | None = None
    # The behaviour of the server of large files.
    breaks_after: int | None = None  # bytes, once
    has_ranges: bool = True
    is_damaged: bool = False
    seconds_a_piece: float = 0

    def __enter__(self):
        self.servers = {name: ThreadingHTTPServer(("127.0.0.1", 0), handler(self, name)) for name in ("hub", "cdn")}
        for server in self.servers.values():
            server.daemon_threads, server.handle_error = True, lambda *_: None  # clients go away
            threading.Thread(target=server.serve_forever, daemon=True, kwargs=dict(poll_interval=0.01)).start()
        return self

    def __exit__(self, *error):
        for server in self.servers.values():
            server.shutdown()
            server.server_close()

    def address(self, name="hub"):
        return f"http://127.0.0.1:{self.servers[name].server_port}"

    def asked(self, server, method=None):
        return [request for request in self.requests if request[0] == server and method in (None, request[1])]


def is_large(name):
    return name.endswith((".safetensors", ".bin"))


def handler(hub, server):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def answer(self, status, content=b"", **headers):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            path = unquote(urlsplit(self.path).path)  # of a proxy's request the address is whole
            token = self.headers.get("Authorization")
            hub.requests.append((server, self.command, path, token, self.headers.get("Range")))
            if hub.is_down:
                return self.answer(503)
            if hub.refusals and hub.refusals[0][0] == server:
                _, status, headers = hub.refusals.pop(0)
                return self.answer(status, **headers)
            if token and token == f"Bearer {hub.refused_token}":
                return self.answer(401, X_Error_Message="Invalid credentials in Authorization header")
            if server == "cdn":
                return self.send_large(path)
            found = re.fullmatch(r"/api/models/([^/]+(?:/[^/]+)?)/(?:revision/(?P<a>.+)|tree/(?P<b>[^/]+))|/(?P<name>[^/]+(?:/[^/]+)?)/resolve/(?P<c>[^/]+)/(?P<file>.+)"
                                 r"|/api/resolve-cache/models/(?P<cached>.+)/[^/]+/(?P<content>[^/]+)", path)
            name = found and (found[1] or found["name"] or found["cached"])
            model = hub.models.get(name)
            if model is None or (model.token and token != f"Bearer {model.token}"):
                return self.answer(401 if token is None else 404, X_Error_Code="RepoNotFound")
            if found["content"]:
                return self.answer(200, model.files[found["content"]], ETag=f'"{git_hash(model.files[found["content"]])}"', X_Repo_Commit=model.commit)
            if (found["a"] or found["b"] or found["c"]) not in ("main", model.commit, *model.tags):
                return self.answer(404, X_Error_Code="RevisionNotFound")
            if found["a"]:
                names = [dict(rfilename=file) for file in model.files]
                return self.answer(200, json.dumps(dict(id=name, modelId=name, sha=model.commit, private=False, siblings=names)).encode())
            if found["b"]:
                return self.answer(200, json.dumps([
                    dict(type="file", path=file, size=len(content), oid=git_hash(content),
                         **(dict(lfs=dict(oid=hashlib.sha256(content).hexdigest(), size=len(content), pointerSize=130)) if is_large(file) else {}))
                    for file, content in model.files.items()]).encode())
            if model.is_gated:
                return self.answer(403, X_Error_Code="GatedRepo")
            content = model.files.get(found["file"])
            if content is None:
                return self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=model.commit)
            about = dict(X_Repo_Commit=model.commit)
            if is_large(found["file"]):
                return self.answer(302, Location=f"{hub.address('cdn')}/{name}/{found['file']}", X_Linked_Size=str(len(content)),
                                   X_Linked_ETag=f'"{hashlib.sha256(content).hexdigest()}"', ETag='"of the redirect"', **about)
            return self.answer(307, Location=f"/api/resolve-cache/models/{name}/{model.commit}/{found['file']}", ETag=f'"{git_hash(content)}"', **about)

        def send_large(self, path):
            name, file = path[1:].rsplit("/", 1)
            content = hub.models[name].files[file]
            if hub.is_damaged:
                content = content[:-1] + bytes([content[-1] ^ 1])
            start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
            begin = int(start[1]) if start and hub.has_ranges else 0
            if start and hub.has_ranges and begin >= len(content):
                return self.answer(416)
            if begin > 0:
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(content) - begin))
            self.end_headers()
            if self.command == "HEAD":
                return None
            end = len(content)
            if hub.breaks_after is not None:
                end, hub.breaks_after = begin + hub.breaks_after, None
            for at in range(begin, end, 1 << 14):
                self.wfile.write(content[at:min(at + (1 << 14), end)])
                time.sleep(hub.seconds_a_piece)
            if end < len(content):
                self.wfile.flush()
                self.connection.close()
                self.close_connection = True
            return None

    return Handler
