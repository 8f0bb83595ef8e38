"""The job: starts the ranks of the program under test and turns their lines into events."""
