"""The vocabulary: what a gang, a device, a team and a reservation are.

Every other package speaks in these words, so this one depends on nothing: frozen dataclasses and enums, no I/O, no
clock, no Prefect. Times are seconds since the epoch (`now` is always an argument), memory is bytes.
"""
