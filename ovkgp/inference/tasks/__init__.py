"""Learning a continuum of tasks: functions x ↦ (θ ↦ value) with a loss that is integrated over the tasks θ (LT-05).

    J(h) = (1/n) Σ_i s_i L(h(x_i), y_i) + (λ/2) ‖h‖²,      h(x)(θ) = b(θ) + φ(x)ᵀ W ψ(θ),     ‖h − b‖ = ‖W‖_F

φ and ψ are coordinates of the input and the task kernel (`factors`), so W ~ N(0, I) is the prior of a Gaussian process
and the minimizer of J is its mode under the pseudo-likelihood exp(−J/λ).
"""
