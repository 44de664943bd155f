"""Tests of what people and programs use: both faces as a whole, the command, dashboard, doctor, README, testing."""
