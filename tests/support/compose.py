"""Reads compose.yaml as Docker Compose does, and runs what its containers would run as processes of this machine."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.fleet import Fleet, Shoal, clean_environment, wait_for
from tests.support.forked_children import MARK
from tests.support.servers import free_port
from tests.support.tool_environments import environment

ROOT = Path(__file__).parents[2]
FILE = ROOT / "compose.yaml"
HEALTH_SECONDS = 30
_READ = "import json, sys; from ruamel.yaml import YAML; json.dump(YAML(typ='safe').load(sys.stdin), sys.stdout)"
_VARIABLE = re.compile(r"\$\{([A-Z_]+)(?:(:[-+])([^${}]*))?\}")
_STAGE = re.compile(r"^FROM \S+ AS (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class ComposeService:
    """One service with its variables filled in."""

    name: str
    values: Mapping[str, Any]

    @property
    def command(self) -> list[str]:
        return [str(word) for word in self.values["command"]]

    @property
    def environment(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.values.get("environment", {}).items()}

    @property
    def has_env_file(self) -> bool:
        return any(each["path"] == ".env" for each in self.values.get("env_file", []))

    @property
    def waits_for(self) -> list[str]:
        """The services that must be healthy, or have ended well, before this one is started."""
        return [name for name, how in self.values.get("depends_on", {}).items() if how.get("required", True)]

    @property
    def ends(self) -> bool:
        """True if others wait for its end."""
        return self.values.get("restart") == "no"

    @property
    def health_check(self) -> list[str]:
        return [str(word) for word in self.values["healthcheck"]["test"]]


def read_compose(file: Path) -> dict[str, Any]:
    """Return a compose file as it is written."""
    python = environment("containers") / "bin" / "python"
    done = subprocess.run([python, "-c", _READ], input=file.read_text(), capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def read_services(variables: Mapping[str, str]) -> dict[str, ComposeService]:
    """Return the services of compose.yaml, with the variables and the profile of a `.env`."""
    found = fill_in(read_compose(FILE)["services"], variables)
    profile = variables.get("COMPOSE_PROFILES")
    return {
        name: ComposeService(name, values)
        for name, values in found.items()
        if profile in values.get("profiles", [profile])
    }


def fill_in(value: Any, variables: Mapping[str, str]) -> Any:
    """Replace `${NAME}`, `${NAME:-default}` and `${NAME:+if set}`, also within each other, and `$$`."""
    if isinstance(value, dict):
        return {name: fill_in(each, variables) for name, each in value.items()}
    if isinstance(value, list):
        return [fill_in(each, variables) for each in value]
    if not isinstance(value, str):
        return value
    while found := _VARIABLE.search(value):
        name, sign, other = found.groups("")
        given = variables.get(name, "")
        value = value.replace(found[0], (other if given else "") if sign == ":+" else given or other)
    return value.replace("$$", "$")


def build_stages() -> list[str]:
    """The targets of the Dockerfile."""
    return _STAGE.findall((ROOT / "Dockerfile").read_text())


class Deployment(Fleet):
    """Services of compose.yaml as processes: the commands and the environment of the containers.

    What only a container has is replaced: names and ports of other containers by addresses of this machine, volumes by
    folders.
    """

    def __init__(self, folder: Path, store_url: str, redis_url: str, **variables: str) -> None:
        super().__init__(folder, store_url)
        self._variables = variables
        self._env = clean_environment(folder) | {MARK: self._mark}
        self.services = read_services(variables)
        self.data, self.logs = folder / "data", folder / "logs"
        self.data.mkdir()
        self.logs.mkdir()
        self._renderer_port = free_port()
        store = self.services["web"].environment["DATABASE_URL"]
        self._places = {
            store: store_url,
            "redis://redis:6379/0": redis_url,
            "renderer:3000": f"127.0.0.1:{self._renderer_port}",
            "0.0.0.0:3000": f"0.0.0.0:{self._renderer_port}",
            "127.0.0.1:3000": f"127.0.0.1:{self._renderer_port}",
            "0.0.0.0:8700": f"0.0.0.0:{self.port}",
            "127.0.0.1:8700": f"127.0.0.1:{self.port}",
            "/data": str(self.data),
            "/logs": str(self.logs),
            "/tmp": str(folder / "tmp"),
        }
        (folder / "tmp").mkdir()

    @property
    def renderer_url(self) -> str:
        return f"http://127.0.0.1:{self._renderer_port}"

    def start(self, name: str, replica: int = 1) -> Shoal:
        """Start a service and wait until its health check passes, or until it has ended well."""
        service = self.services[name]
        places = self._places | {"127.0.0.1:8701": f"127.0.0.1:{free_port()}"}
        env = (self._variables if service.has_env_file else {}) | {
            key: _moved(value, places) for key, value in service.environment.items()
        }
        words = [_moved(word, places) for word in service.command]
        member = self._add(f"{name}-{replica}", words, GRPC_NODE_ID=f"{name}-{replica}", **env)
        if service.ends:
            assert member.wait() == 0
            return member
        kind, *check = [_moved(word, places) for word in service.health_check]
        assert (kind, check[0]) == ("CMD", "python")
        wait_for(lambda: self._passes(check[1:], member), f"a healthy {name}")
        return member

    def _passes(self, check: list[str], member: Shoal) -> bool:
        assert member.alive, f"{member.name} has ended"
        done = subprocess.run([sys.executable, *check], capture_output=True, timeout=HEALTH_SECONDS, check=False)
        return done.returncode == 0


def _moved(text: str, places: Mapping[str, str]) -> str:
    for there, here in places.items():
        if text == there or (text.startswith(f"{there}/") and there.startswith("/")) or f"//{there}" in text:
            return text.replace(there, here)
    return text
