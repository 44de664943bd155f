"""Tests of what people and programs use: command, dashboard, doctor, README, testing; and sweeps of the whole queue."""
