"""Tests: `unit` needs no server, `server` talks to a real tritonserver, `gpu` needs a CUDA device."""
