"""A client of the control plane made from the text of the oldest protocol definition, which knows nothing of ours."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc  # type: ignore[import-untyped]

PROTO = """
syntax = "proto3";
package control;
option go_package = "animetop/proto/pb";

service CrawlerControl {
  // Bidirectional stream: connect = register, disconnect = deregister
  rpc Session(stream CrawlerStatus) returns (stream ControlCommand);
}

message CrawlerStatus {
  string node_id          = 1;
  int32  max_concurrency  = 2;
  int32  active_tasks     = 3;
  int32  queue_depth      = 4;
  float  success_rate     = 5;
  float  avg_latency_sec  = 6;
  bool   is_proxy_mode    = 7;
  bool   is_draining      = 8;
  int64  uptime_sec       = 9;
  int64  total_processed  = 10;
  int64  timestamp        = 11;
}

message ControlCommand {
  oneof command {
    ConfigUpdate          config_update   = 1;
    PauseCommand          pause           = 2;
    ResumeCommand         resume          = 3;
    DrainCommand          drain           = 4;
    RestartBrowserCommand restart_browser = 5;
  }
}

message ConfigUpdate {
  int32 max_concurrency = 1;
  float rate_limit      = 2;
}
message PauseCommand  { string reason = 1; }
message ResumeCommand {}
message DrainCommand  { string reason = 1; }
message RestartBrowserCommand { string reason = 1; }
"""


@cache
def messages() -> dict[str, Any]:
    """Compile the definition; return its message classes, in a pool of their own because ours have the same names."""
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "control.proto"), Path(folder, "control.bin")
        source.write_text(PROTO)
        assert protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={result}", str(source)]) == 0
        files = descriptor_pb2.FileDescriptorSet.FromString(result.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    names = ("CrawlerStatus", "ControlCommand")
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"control.{name}")) for name in names}


def status(node_id: str = "seed-1", **fields: Any) -> Any:
    """Return a status message of the oldest definition."""
    return messages()["CrawlerStatus"](**{"node_id": node_id, "max_concurrency": 2, **fields})


def open_session(channel: grpc.aio.Channel, token: str | None = None) -> Any:
    """Open a stream as a client generated from the oldest definition does."""
    call = channel.stream_stream(
        "/control.CrawlerControl/Session",
        request_serializer=messages()["CrawlerStatus"].SerializeToString,
        response_deserializer=messages()["ControlCommand"].FromString,
    )
    return call(metadata=[] if token is None else [("authorization", f"Bearer {token}")])
