"""Run as a process: `append_until_killed.py LOG NEXT` appends until it is killed and prints what is durable.

Every batch holds one segment of each of two feeds, so that half a batch would be noticed.
"""

import sys
from itertools import count
from pathlib import Path

from sfnode.store.log import UpdateLog
from tests.store.helpers import RUN_ID, Author, scalar_of

log = UpdateLog.open(Path(sys.argv[1]), RUN_ID)
authors = [Author(1), Author(2)]
begun = int(sys.argv[2])
if begun:
    for author in authors:
        author.write(map(scalar_of, range(begun)))
for number in count():
    following = len(authors[0].updates)
    steps = range(following, following + 1 + number % 3)
    log.append([author.write(map(scalar_of, steps)) for author in authors])
    print(steps.stop, flush=True)
