"""Helpers of the tests: the model, the judges, the long runs; servers, proxies and terminals to run on."""
