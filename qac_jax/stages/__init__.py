"""Stages: artefacts in, artefact out; one thin file a verb (DESIGN.md, floor 4)."""
