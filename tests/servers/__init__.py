"""Tests of the way to a server: links, TLS, rights, clusters, embedded servers; servers that are full, slow or away."""
