"""Tests of what people and programs use: command, dashboard, doctor, README, testing and fakeredis; and whole sweeps."""
