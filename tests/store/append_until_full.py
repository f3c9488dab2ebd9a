"""Run as a process: `append_until_full.py LOG LIMIT` appends up to a file size limit, which is then lifted.

Prints the code of the error, then the number of updates that were acknowledged, then how many the log could
still read, then how many it holds after one more append without the limit.
"""

import resource
import sys
from pathlib import Path

from sfnode.errors import UserError
from sfnode.store.log import UpdateLog
from tests.store.helpers import RUN_ID, Author, scalar_of

log = UpdateLog.open(Path(sys.argv[1]), RUN_ID)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), hard))
author = Author()
acknowledged = 0
try:
    while True:
        record = author.write([scalar_of(len(author.updates))])
        log.append([record])
        acknowledged += 1
except UserError as error:
    print(int(error.code))
print(acknowledged)
print(sum(stored.segment.count for stored in log.records()))
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
log.append([record])
print(log.updates())
