"""The engine as front ends use it: profiles, runs, connections to supervisors."""
