"""ROSE: the engine half of the server. Token ids in, vectors out; it knows nothing of Triton or of text."""

import os

# OpenMP reads it when torch is loaded. Left alone its threads spin for milliseconds after the last loop of a step, on
# cores that the answer's way back needs: on two cores that way took 4.5 ms, and takes 3.2, with 1.1 times the texts/s.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
