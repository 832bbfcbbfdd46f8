"""Re-organization: the clusters of a namespace looked at as a whole and put right (design, section 5).

layout -> sampling -> SLM or vector planner -> checking -> naming -> applying
`service` runs that as an operation, `triggers` starts one by itself
"""
