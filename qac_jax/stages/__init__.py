"""Stages: artefacts in, artefact out; a verb, or verbs of one kind, a file."""
