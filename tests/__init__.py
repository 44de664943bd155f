"""The tests of timeoutq, in folders: `.github/CONTRIBUTING.md` says which folder a test belongs to."""
