"""Stages: artefacts in, artefact out; one short file a verb (DESIGN.md, floor 4)."""
