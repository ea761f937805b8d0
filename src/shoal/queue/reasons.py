"""The reasons that are stored with jobs, in words. A job of a run can also have a reason of its run: why the crawl
ended, or which error ended the page."""

from shoal.base.text import message
from shoal.queue.states import POISON, STALLED, WORKER_LOST

_NOT_RUNNING = message("its crawl is not running")
_URL_REFUSED = message("a redirect leads to a URL that is refused")
_ERROR = message("its process ended with an error")

PAGE_ERRORS = {
    "address_not_public": message("the address of the host is not public"),
    "backslash_in_url": _URL_REFUSED,
    "bad_encoding": message("the body does not match its encoding"),
    "body_too_large": message("the body is too large"),
    "content_failed": message("its content could not be converted"),
    "content_too_large": message("the content is too large"),
    "connect_error": message("the server refused the connection"),
    "connect_timeout": message("the server could not be reached in time"),
    "connection_lost": message("the connection was lost"),
    "control_characters": _URL_REFUSED,
    "credentials_in_url": _URL_REFUSED,
    "decompressed_too_large": message("the decompressed body is too large"),
    "dns_error": message("the host name could not be resolved"),
    "empty_reply": message("the server sent no response"),
    "headers_too_large": message("the headers are too large"),
    "hook_failed": message("a hook failed"),
    "host_too_long": _URL_REFUSED,
    "http_status": message("the server answered with an error status"),
    "idle_timeout": message("the server stopped sending"),
    "invalid_data": message("the data of the page is not valid"),
    "unstorable_result": message("its result could not be stored"),
    "invalid_request": message("a header or the method is invalid"),
    "invalid_url": _URL_REFUSED,
    "not_a_page": message("the URL leads to a download"),
    "port_not_allowed": message("the port is not allowed"),
    "protocol_error": message("the response is not valid HTTP"),
    "proxy_error": message("the proxy refused the connection"),
    "redirect_loop": message("the redirects form a loop"),
    "redirect_scheme": _URL_REFUSED,
    "render_crashed": message("the page crashed its browser"),
    "render_failed": message("the browser could not load the page"),
    "render_timeout": message("the scripts of the page did not end in time"),
    "robots_denied": message("robots.txt disallows the page"),
    "robots_unreachable": message("robots.txt could not be fetched"),
    "self_connection": message("the address belongs to the controller"),
    "tls_error": message("the TLS connection failed"),
    "tls_expired": message("the certificate has expired"),
    "tls_self_signed": message("the certificate is self-signed"),
    "tls_unknown_issuer": message("the certificate comes from an unknown authority"),
    "tls_wrong_host": message("the certificate is for a different host"),
    "too_many_encodings": message("the body has too many encodings"),
    "too_many_redirects": message("there are too many redirects"),
    "total_timeout": message("the response took too long"),
    "transport_error": message("the transfer failed"),
    "unexpected": message("an unexpected error"),
    "unknown_proxy": message("the worker has no proxy with that label"),
    "unreadable_job": message("the job cannot be read"),
    "url_too_long": _URL_REFUSED,
    "worker_killed": message("the page killed its worker"),
}
"""Why a page job failed without a further attempt: the error of its page."""

PROCESS_ERRORS = {
    "already_exists": _ERROR,
    "back_pressure": message("too many jobs were waiting"),
    "backend_unavailable": message("a store or service was not available"),
    "bad_config": message("a setting cannot be used"),
    "bodies_unavailable": message("the body store was not available"),
    "body_not_kept": _ERROR,
    "frontier_lost": message("Redis lost its frontier"),
    "interrupted": message("interrupted"),
    "invalid_input": _ERROR,
    "lease_lost": message("its lease was lost"),
    "missing_extra": _ERROR,
    "no_worker": message("no worker took it"),
    "node_displaced": _ERROR,
    "not_allowed": _ERROR,
    "not_found": _ERROR,
    "nothing_crawled": message("no seed returned a page"),
    "rate_limited": message("too many requests were sent"),
    "redis_misconfigured": message("Redis is not configured correctly"),
    "schema_mismatch": message("the store has a different schema version"),
    "state_conflict": _ERROR,
    "storage_full": message("the storage is full"),
    "too_large": _ERROR,
    "took_too_long": _ERROR,
    "unauthenticated": _ERROR,
    "usage": _ERROR,
    "wait_timed_out": _ERROR,
    "wrong_media_type": _ERROR,
}
"""Why a process that crawls by itself left its crawl: the error that ended the process."""

RUN_REASONS = {
    "drained": message("no URL was waiting"),  # limits or quarantine may have kept some URLs from being queued
    "max_pages": message("the page limit was reached"),
    "max_bytes": message("the size limit was reached"),
    "max_seconds": message("the time limit was reached"),
    "changed": message("its options were changed"),
    "slice": message("another crawl is waiting for a worker"),
    "walker_lost": message("its last worker was lost"),
    "pause": message("its crawl was paused"),
    "pausing": message("its crawl was paused"),
    "paused": message("its crawl was paused"),
    "pause_scan": message("its scan was paused"),
    "left": message("its process left the scan"),
    "stop": message("its crawl was stopped"),
    "stopping": message("its crawl was stopped"),
    "stopped": message("its crawl was stopped"),
    "completed": message("its crawl is completed"),
    "failed": message("its crawl has failed"),
    "pending": _NOT_RUNNING,
    "queued": _NOT_RUNNING,
    "running": message("a limit of its crawl was reached"),
}
"""Why a walker left its crawl, or was cancelled with the crawl."""

REASONS = (
    PAGE_ERRORS
    | PROCESS_ERRORS
    | RUN_REASONS
    | {
        "retry": message("it failed"),
        "retried": message("by hand"),
        "quota": message("a quota is used up"),
        "asked": message("on request"),
        "forced": message("by force"),
        "replaced": message("replaced by a newer one"),
        "attempts_exhausted": message("its last attempt failed"),
        POISON: message("its workers were lost too often"),
        STALLED: message("it made no progress for too long"),
        WORKER_LOST: message("its last worker was lost"),
        "shutdown": message("its worker is shutting down"),
        "draining": message("its worker is being drained"),
        "resized": message("its worker was given fewer slots"),
        "no_child": message("its worker could not start a process"),
        "no_slot": message("its worker had no free slot"),
        "not_begun": message("its worker was lost before it began"),
        "not_taken": message("the bot left before it received the job"),
        "token_revoked": message("the token of its bot was revoked"),
        "token_expired": message("the token of its bot has expired"),
        "host_busy": message("its host is busy"),
        "renderer_unavailable": message("the renderer is busy or not available"),
        "browser_restarted": message("the browsers were restarted"),
        "store_away": message("the store was not available"),
    }
)


def reason_text(reason: str | None) -> str:
    """Return the reason of a job's state in words. A reason that this version does not know is returned as it is
    stored."""
    return REASONS.get(reason or "", reason or "")
