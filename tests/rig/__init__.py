"""What the tests are made with: the model, the judges, the long runs; servers, proxies and terminals to run on."""
