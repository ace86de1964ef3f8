"""ROSE: the engine half of the server. Token ids in, vectors out; it knows nothing of Triton or of text."""

import os

# OpenMP reads it when torch is loaded. Left alone its threads spin for milliseconds after the last loop of a step, on
# cores that the answer's way back needs: on two cores that way took 4.5 ms, and takes 3.2, with 1.1 times the texts/s.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Asleep at once, though, they have to be woken for every loop. 20,000 looks are about a millisecond, longer than torch
# needs from one loop to the next: on 16 cores MiniLM's step for 25 tokens took 7.6 ms, and takes 5.0.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
