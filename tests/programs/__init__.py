"""Programs in the manner of what people run, with the libraries that they use, launched as their users would."""
