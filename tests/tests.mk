# Test programs; TAP, run by prove.
