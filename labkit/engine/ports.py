"""Ports: a free one, or a clear word on who holds the one asked for."""

from __future__ import annotations

import socket

import psutil

from labkit.errors import PortInUseError


def free_port(host: str) -> int:
    """Return a port that nobody listens on right now."""
    with socket.create_server((host, 0), family=_family(host)) as probe:
        return int(probe.getsockname()[1])


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def refuse_taken(host: str, port: int) -> None:
    """Make sure that a server could listen there.

    Raises:
        PortInUseError: it could not; names the holder if the system tells.
    """
    try:
        socket.create_server((host, port), family=_family(host)).close()
    except OSError as error:
        raise PortInUseError(
            f"port {port} on {host} can't be used",
            why=f"{error.strerror}{_holder(port)}",
            hint="leave `port` out to get a free one",
        ) from None


def _holder(port: int) -> str:
    try:
        connections = psutil.net_connections("inet")
    except psutil.Error:
        return ""
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.pid and tuple(connection.laddr)[1:2] == (port,):
            return f", held by pid {connection.pid}"
    return ""
