"""Write the files of the recorded situations."""

import argparse
from pathlib import Path

from tests.recordings import SITUATIONS, add, write


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.recordings", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    writer = commands.add_parser("write", help="write into each file what the rules find in it now")
    writer.add_argument("situations", nargs="*", metavar="SITUATION", help="ROOM/SITUATION [default: all]")
    adder = commands.add_parser("add", help="add a recording as a situation, with what the rules find in it now")
    adder.add_argument("file", type=Path, metavar="FILE", help="the recording, or the file of a situation")
    adder.add_argument("situation", metavar="ROOM/SITUATION")
    adder.add_argument("about", metavar="ABOUT", help="what it shows, and where it comes from")
    given = parser.parse_args()
    if given.command == "add":
        add(given.file, given.situation, given.about)
        return
    for situation in given.situations or SITUATIONS:
        if write(situation):
            print(situation)


if __name__ == "__main__":
    main()
