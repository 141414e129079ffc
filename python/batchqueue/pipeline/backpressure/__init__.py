"""Back-pressure as a signal: from what stages hold to what sources may do.

Readings become a pressure (`pressure`), which reaches the sources as a signal (`signals`) and opens
or closes their gate (`gate`). `controller` does that at each check. All but its log is pure.
"""
