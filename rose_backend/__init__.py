"""ROSE: the engine half of the server. Token ids in, vectors out; it knows nothing of Triton or of text."""

import os

from rose_backend.cores import SHARE_LEFT_FREE, usable_cores

# OpenMP reads these when torch is loaded. Left alone its threads spin for milliseconds after the last loop of a step,
# on cores that the answer's way back needs: on two that way took 4.5 ms, and takes 3.2, with 1.1 times the texts/s.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "passive"
    # Asleep at once, though, they have to be woken for every loop. 20,000 looks are about a millisecond, longer than
    # torch needs from one loop to the next: on 16 cores MiniLM's step for 25 tokens took 7.6 ms, and takes 5.0. On two,
    # with something else busy on one of them, it took three times as long.
    if usable_cores() >= SHARE_LEFT_FREE:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")
