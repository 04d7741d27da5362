"""Solvers of `TaskProblem`: primal, dual, in closed form for the square loss, streamed and stochastic."""
