"""Records real nodes and replays them: file format, recorder, replay, pseudonyms."""
