"""Why a rank, a node or a launcher failed."""
