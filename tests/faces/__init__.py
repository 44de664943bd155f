"""Tests of what people and programs use: command, dashboard, doctor, README, testing, fakeredis; and whole sweeps."""
