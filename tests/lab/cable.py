"""A network cable with a length: carries frames between two interfaces, each after a delay.

    python cable.py INTERFACE INTERFACE DELAY_MS

Replaces `tc netem delay`, which some kernels lack. faults.delay runs it in the switch. Each frame keeps the header with
the work that the sender left to the hardware (checksum, segmentation), so that large sends stay large: 2 Gbit/s and
more without delay.
"""

import asyncio
import contextlib
import os
import selectors
import socket
import sys

ETH_P_ALL = 0x0003
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33  # asm-generic/socket.h
SOL_PACKET = 263  # linux/socket.h; the two below are from linux/if_packet.h
PACKET_VNET_HDR = 15
PACKET_IGNORE_OUTGOING = 23
LARGEST = 10 + 14 + 65536


def end_of_cable(interface: str) -> socket.socket:
    """A socket that receives what arrives at the interface and sends out of it."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    end.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    end.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    end.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 64 << 20)
    end.bind((interface, 0))
    end.setblocking(False)
    return end


def carry(first: socket.socket, second: socket.socket, delay_s: float) -> None:
    """Hand frames on, each ``delay_s`` after it arrived, until killed."""
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())  # epoll rounds up to milliseconds
    for one, other in ((first, second), (second, first)):
        loop.add_reader(one, hand_on, loop, one, other, delay_s)
    loop.run_forever()


def hand_on(loop: asyncio.AbstractEventLoop, one: socket.socket, other: socket.socket, delay_s: float) -> None:
    """Send what has arrived at one end out of the other end after the delay."""
    loop.call_later(delay_s, send, other, arrived(one))


def send(end: socket.socket, frames: list[bytes]) -> None:
    """Send the frames; frames that the interface does not accept are lost, as in a cable."""
    for frame in frames:
        with contextlib.suppress(OSError):
            end.send(frame)


def arrived(end: socket.socket) -> list[bytes]:
    """Return the frames that have arrived, at most 64."""
    frames: list[bytes] = []
    try:
        while len(frames) < 64:
            frames.append(end.recv(LARGEST))
    except OSError:  # no more frames, or the interface is down, which is reported once
        pass
    return frames


if __name__ == "__main__":
    os.nice(-15)  # the delay must not grow with the load of the hosts
    ends = end_of_cable(sys.argv[1]), end_of_cable(sys.argv[2])
    print("ready", flush=True)
    carry(*ends, float(sys.argv[3]) / 1000)
