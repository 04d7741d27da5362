"""What every experiment of the benchmarks must do at any size."""


def check_experiment(claims, printed: str, certain: list[str]) -> None:
    """Its claims are printed, no figure is NaN, and the claims with these words, no matter of size, hold."""
    assert claims and all(claim.text in printed for claim in claims)
    assert "nan" not in printed
    for words in certain:
        found = [claim for claim in claims if words in claim.text]
        assert found and all(claim.holds for claim in found), printed
