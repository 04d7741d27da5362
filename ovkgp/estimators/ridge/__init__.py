"""Ridge estimators and the classifiers and online learners built on them."""
