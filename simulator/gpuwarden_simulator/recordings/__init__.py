"""Recordings of real nodes: file format, recorder, replay, pseudonyms."""
