import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from verl_regress.doctor import command
from verl_regress.doctor.checks import ALARM, LATE, OK, SKIPPED, DoctorCheck, Seen

DEFAULTS = Path(__file__).resolve().parents[2] / "env/defaults.env"
WORDS = ["head=10.0.0.1", "worker-0=10.0.0.2"]


def knobs(**more):
    known = {"CLUSTER_NAME": "c", "PROFILE": "cpu", "GCS_PORT": "6379", **more}
    return "--knobs=" + json.dumps({name: [value, "test"] for name, value in known.items()})


@pytest.fixture(autouse=True)
def groups(monkeypatch):
    checks = (
        DoctorCheck("VR-X-01", "count", "no job can run", "add one"),
        DoctorCheck("VR-X-02", "wait", "", "", lambda *_: [Seen("VR-X-02", SKIPPED, "head", "no time")], quick=False),
    )

    def facts(plan):
        plan.see("VR-X-01", "42", status=OK)
        return {"nodes": len(plan.nodes)}

    group = SimpleNamespace(CHECKS=checks, facts=facts)
    monkeypatch.setattr(command, "GROUPS", {"x": group})
    monkeypatch.setattr(command.processes, "commands", dict)
    monkeypatch.setattr(command.signal, "alarm", lambda _seconds: None)


def line(node, status=OK, where=None, seen="42", load="", **more):
    rows = [["VR-X-01", status, where or node, seen]]
    return f"{node}\t{json.dumps({'kind': 'Linux', 'load': load, 'seen': rows, 'x': more})}\n"


def judged(capsys, lines, *words, **more):
    status = command.main(["judge", knobs(**more), *words, *WORDS], lines)
    return status, capsys.readouterr()


def records(capsys, lines, **more):
    return json.loads(judged(capsys, lines, JSON="1", **more)[1].out)["checks"]


def probed(capsys):
    assert command.main(["probe", "--node=head", knobs(), *WORDS], []) == 0
    return json.loads(capsys.readouterr().out)


def test_probe_prints_the_facts_of_each_group_as_one_line(capsys):
    found = probed(capsys)
    assert (found["seen"], found["x"]) == ([["VR-X-01", "ok", "head", "42"]], {"nodes": 2})


def test_probe_that_fails_is_a_finding_and_what_it_saw_before_is_kept(capsys, monkeypatch):
    monkeypatch.setattr(command.GROUPS["x"], "facts", lambda plan: plan.see("VR-X-01", "41") or {}["ip"])
    found = probed(capsys)
    assert found["x"] == {"error": "KeyError: 'ip'"}
    assert found["seen"] == [
        ["VR-X-01", "alarm", "head", "41"],
        ["VR-NODE-02", "alarm", "head", "x: KeyError: 'ip'"],
    ]


def test_group_that_hangs_is_late(capsys, monkeypatch):
    hangs = threading.Event()
    monkeypatch.setattr(command, "_LONGEST", 0.0)
    monkeypatch.setattr(command.GROUPS["x"], "facts", lambda _plan: hangs.wait())
    assert probed(capsys)["seen"] == [["VR-NODE-02", "late", "head", "x: no result in 0 s"]]
    hangs.set()


def test_what_is_late_is_an_alarm_unless_the_load_of_its_nodes_explains_it(capsys):
    lines = [line("head", LATE, "head -> worker-0", "no answer"), line("worker-0")]
    found = {one["where"]: one for one in records(capsys, lines) if one["code"] == "VR-X-01"}
    assert (found["head -> worker-0"]["status"], found["head -> worker-0"]["seen"]) == (ALARM, "no answer")
    assert judged(capsys, lines)[0] == 9
    lines[1] = line("worker-0", load="load 20 on 2 CPUs")
    found = {one["where"]: one for one in records(capsys, lines) if one["code"] == "VR-X-01"}
    assert found["head -> worker-0"]["seen"] == "no answer (load 20 on 2 CPUs)"
    assert found["head -> worker-0"]["status"] == SKIPPED
    assert judged(capsys, lines)[0] == 0


@pytest.mark.parametrize(("load", "said"), [(3.9, ""), (20.2, "load 20 on 2 CPUs")])
def test_machine_is_busy_if_many_programs_wait_for_each_cpu(capsys, monkeypatch, load, said):
    monkeypatch.setattr(command.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(command.os, "cpu_count", lambda: 2)
    assert probed(capsys)["load"] == said


def test_judge_says_what_was_seen_what_it_means_and_the_cure(capsys):
    status, said = judged(capsys, [line("head"), line("worker-0", ALARM, seen="41")])
    assert status == 9
    assert said.out.splitlines() == [
        "VR-NODE-01  ok       head, worker-0  run Python: Linux",
        "VR-NODE-02  ok       all nodes       finish each group of checks: nothing wrong",
        "VR-X-01     ok       head            count: 42",
        "VR-X-01     alarm    worker-0        count: 41",
        "                     means: no job can run",
        "                     cure: add one",
        "VR-X-02     skipped  head            wait: no time",
    ]
    assert judged(capsys, [line("head"), line("worker-0")])[0] == 0


def test_quick_makes_only_the_quick_checks(capsys):
    assert "VR-X-02" not in judged(capsys, [line("head"), line("worker-0")], "--quick")[1].out


def test_gate_prints_only_alarms_each_as_a_sentence(capsys):
    status, said = judged(capsys, [line("head"), line("worker-0", ALARM, seen="41")], "--gate")
    assert (status, said.out) == (9, "")
    assert said.err == (
        "error   VR-X-01, worker-0: 41, so no job can run: add one; SKIP_DOCTOR=VR-X-01 goes on without this check.\n"
    )


def test_skipped_code_is_not_judged_and_says_why(capsys):
    status, said = judged(capsys, [line("head"), line("worker-0", ALARM)], SKIP_DOCTOR="VR-X-01, VR-X-02")
    assert status == 0
    assert "VR-X-01     skipped  all nodes       count: SKIP_DOCTOR names it" in said.out


@pytest.mark.parametrize("answer", ["the connection was lost", "", "8", '{"kind": "Lin'])
def test_node_that_does_not_answer_is_a_finding_and_what_others_saw_of_it_is_not(capsys, answer):
    head, first, _, *others = records(capsys, [line("head", ALARM, "head -> worker-0"), f"worker-0\t{answer}\n"])
    assert head["status"] == "ok"
    assert (first["code"], first["status"], first["where"]) == ("VR-NODE-01", "alarm", "worker-0")
    assert first["seen"] == (answer or "no answer")
    assert "alarm" not in {one["status"] for one in others}


def test_what_several_nodes_saw_is_one_line(capsys):
    lines = [line("head", ALARM, "head -> worker-0"), line("worker-0", ALARM, "worker-0 -> head")]
    assert records(capsys, lines)[2]["where"] == "head -> worker-0, worker-0 -> head"


def test_group_that_failed_on_a_node_is_skipped_there(capsys):
    found = records(capsys, [line("head"), line("worker-0", error="OSError: no /proc")])[3]
    assert (found["status"], found["where"], found["seen"]) == ("skipped", "worker-0", "OSError: no /proc")


def test_alarms_about_a_node_are_shown_although_its_own_group_ended_late(capsys):
    lines = [line("head", ALARM, "head -> worker-0"), line("worker-0", error="no result in 48 s")]
    assert (ALARM, "head -> worker-0") in {(one["status"], one["where"]) for one in records(capsys, lines)}


def test_job_is_seen_by_its_launcher_and_by_its_actors_on_the_other_nodes():
    assert command.is_training([b"sh\0", b"python3\0/private/x/py/run.py\0launch\0/private/jobs/a\0"])
    assert command.is_training([b"ray::IDLE\0", b"ray::WorkerDict.update_actor\0"])
    assert not command.is_training([b"python3\0/private/x/py/run.py\0status\0", b"grep\0launch\0", b"python3\0ray::A"])
    assert not command.is_training([b"ray::IDLE\0", b"ray::DashboardAgent\0", b"ray::RuntimeEnvAgent\0"])


def test_shared_root_that_hangs_is_an_alarm(capsys, monkeypatch):
    hangs = threading.Event()
    monkeypatch.setattr(command, "_LONGEST", 0.0)
    monkeypatch.setattr(command, "GROUPS", {"shared root": command.shared_root})
    monkeypatch.setattr(command.shared_root, "facts", lambda _plan: hangs.wait())
    answer = json.dumps(probed(capsys))
    hangs.set()
    found = records(capsys, [f"head\t{answer}"])
    assert [(one["status"], one["seen"]) for one in found if one["code"] == "VR-ROOT-01"] == [
        (ALARM, "no result in 0 s")
    ]


def test_knob_takes_exactly_the_codes_of_the_table():
    line = next(line for line in DEFAULTS.read_text().splitlines() if line.startswith("#: list of VR-"))
    codes = [check.code for check in command.CHECKS]
    assert line.removeprefix("#: list of ").partition(" or empty, for ")[0].split() == codes
    assert all(check.tries and check.means and check.cure for check in command.CHECKS)
