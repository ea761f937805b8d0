"""The Lua scripts for Redis: each describes itself in its header, and treats payloads as opaque bytes."""

from shoal.drivers.redis.connection import FOLDER, load

SCRIPTS = sorted(path.stem for path in FOLDER.glob("*_*.lua"))


def test_there_are_scripts_of_the_frontier_and_of_the_lanes() -> None:
    assert sum(name.startswith("frontier_") for name in SCRIPTS) > 20
    assert sum(name.startswith("lane_") for name in SCRIPTS) > 5


def test_every_script_says_what_it_takes_and_returns() -> None:
    for name in SCRIPTS:
        lines = (FOLDER / f"{name}.lua").read_text().splitlines()
        end = next(at for at, line in enumerate(lines) if not line.startswith("--"))
        header, body = "\n".join(lines[:end]), "\n".join(lines[end:])
        assert ("ARGV[" in header) == ("ARGV[" in body), name
        assert "-- Returns: OK" in header, name
        assert "cjson" not in load(name).text, name
