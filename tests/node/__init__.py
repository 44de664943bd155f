"""Tests of the protocol, and the client in Node."""
