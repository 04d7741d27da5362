"""Parts that the estimators share: base classes, validation, scaling, options, named kernels, streaming and summaries."""
