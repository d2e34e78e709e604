"""One regression session: which jobs it runs, the evidence it gathers from the outside, the lines it judges, the report."""
