"""The dials of a run as evidence: some that failed, and one that shows what works."""

from ddp_doctor.checks.cluster.connectivity import wording as words
from ddp_doctor.checks.cluster.connectivity.blame import Path
from ddp_doctor.checks.cluster.connectivity.matrix import PATHS_SHOWN, Matrix
from ddp_doctor.facts.cluster.connectivity import PeerConnectivity
from ddp_doctor.model.finding import Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.wording.nodes import host


def dials_seen(recording: Recording, matrix: Matrix, paths: list[Path]) -> tuple[Evidence, ...]:
    """Some of the dials that failed, how many there are, and one that shows what works."""
    told = [Evidence(text=_dial(recording, path, matrix.seen[path])) for path in paths[:PATHS_SHOWN]]
    works = [path for path, peer in matrix.seen.items() if peer.connect_s is not None]
    shown = [path for path in works if path[::-1] in paths] or works
    told += [Evidence(text=_dial(recording, path, matrix.seen[path])) for path in shown[:1]]
    if len(paths) > PATHS_SHOWN:
        text = "paths on which no connection came about"
        told.append(Evidence(text=text, value=len(paths), expected=0))
    return tuple(told)


def _dial(recording: Recording, path: Path, peer: PeerConnectivity) -> str:
    address = f"[{peer.address}]" if ":" in peer.address else peer.address
    result = words.system_words(peer.error)
    if peer.connect_s is not None:
        result = f"connected after {peer.connect_s * 1e3:.1f} ms"
    other = f"; at {peer.met_at} it answers" if peer.met_at_outcome == "ok" else ""
    source, target = (host(recording, node) for node in path)
    return f"{source} dials {target} at {address}:{peer.port}: {result}{other}"
