"""Receives samples of other programs: remote write and OTLP."""
