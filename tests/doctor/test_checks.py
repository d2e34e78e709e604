from verl_regress.doctor.checks import Plan


def test_plan_knows_the_peers_of_its_node():
    nodes = {"head": "10.0.0.1", "worker-0": "10.0.0.2"}
    plan = Plan("worker-0", nodes, "c", "cpu", "/private", 6379, quick=True, trains=False)
    assert (plan.address, plan.peers) == ("10.0.0.2", {"head": "10.0.0.1"})
