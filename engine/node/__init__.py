"""What is sent to a node. Standard library only; imports nothing of ours."""
