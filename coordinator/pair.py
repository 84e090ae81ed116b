"""`python -m coordinator.pair`: a receiver and a generator in one process, so that they share a GPU."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from streamdsb.hangup import exits_on_hangup

if TYPE_CHECKING:
    from streamdsb.join import Origin


def main(arguments: list[str]) -> int:
    """Be both roles, the receiver's control connection first; the greater exit status."""
    with exits_on_hangup(int(arguments[0])):
        from generator.main import main as generate
        from receiver.main import main as receive
        from streamdsb.join import inherited_origin
    statuses = [1, 1]

    def work(index: int, role: Callable[[Origin], int], origin: Origin) -> None:
        statuses[index] = role(origin)

    threads = [
        threading.Thread(target=work, args=(index, role, inherited_origin([argument])))
        for index, (role, argument) in enumerate(zip((receive, generate), arguments, strict=True))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
