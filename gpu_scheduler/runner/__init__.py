"""The small process around every attempt, and what others may ask or tell it through the attempt's folder.

Standard library only, and nothing else of ours. This file has no imports: the runner starts through it.
"""
