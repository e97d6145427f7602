"""Process groups for `torch.distributed` that torch's wheels do not bring. Importing this package loads none of them."""
