"""How does a scikit-learn user get it? Estimators whose predictions come with their uncertainty."""
