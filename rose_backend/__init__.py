"""ROSE: the engine half of the server. Token ids in, vectors out; it knows nothing of Triton or of text."""

import os

# OpenMP reads these when torch is loaded. Left alone its threads spin for milliseconds after the last loop of a step,
# on cores that whoever brings the next request needs. Asleep at once, though, they have to be woken for every loop. So
# they look out 2,000 times, about a tenth of a millisecond, which is what torch needs from one loop to the next. See
# docs/performance.md, "The CPU": on 16 cores and on two, nothing was quicker.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "passive"
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
