"""docs/doctor.md: what `make doctor` found of the faults that were planted on real nodes, and how often it raised an alarm on healthy ones.

    doctor.py try NAME...        plants all these on the cluster that CLUSTER_NAME and WORKDIR name; exits 1 if one is not found
    doctor.py record [NAME...]   all faults, or these, and 20 times healthy nodes, on a cluster of its own; writes maintain/doctor.json and the page
    doctor.py healthy            only the healthy nodes
    doctor.py without [NAME...]  what one sees of healthy nodes and these faults, or all, without the doctor: `make up` and a job without its
                                 gate, in DEADLINE seconds; adds it to the record
    doctor.py write | check      the page is what the record and the doctor's table make; check exits 1 where it is not

Faults need root and a container engine, and some need sshfs, openssh-sftp-server, bindfs and a C compiler.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import page
from doctor_faults import CHOSEN_LATER, FAULTS, planted
from reliability import machine
from verl_regress.doctor import command
from verl_regress.doctor.checks import ALARM

REPO = Path(__file__).resolve().parents[1]
PAGE, RECORD = REPO / "docs/doctor.md", REPO / "maintain/doctor.json"
HEALTHY, DEADLINE, LONGEST = 20, 150, 250
# Scripts, and their knobs.
TO_START: Mapping[str, Mapping[str, str]] = {"12_install_py_deps": {}, "20_start_head": {}, "21_start_workers": {}}
TO_PREPARE = {**TO_START, "30_prepare_data_and_model": {}, "31_snapshot_verl_code": {}}
TO_TRAIN = {
    **TO_START,
    "44_submit_sdk": {
        "WAIT": "1",
        "WORKLOAD": "sft",
        "OVERRIDES": "trainer.total_training_steps=2 trainer.save_freq=-1",
    },
}
Record = dict[str, Any]


def main(action: str, names: Sequence[str]) -> int:
    """One of the actions above; returns the exit status."""
    if unknown := set(names) - set(FAULTS):
        print(f"{', '.join(sorted(unknown))}: these are no faults of maintain/doctor_faults.py", file=sys.stderr)
        return 2
    match action:
        case "write":
            PAGE.write_text(written(json.loads(RECORD.read_text())), encoding="utf-8")
        case "check":
            if PAGE.read_text(encoding="utf-8") != written(json.loads(RECORD.read_text())):
                print("docs/doctor.md is not what maintain/doctor.json and the table make: 'maintain/doctor.py write'.")
                return 1
        case "try":
            return 0 if names and all(one["found"] for one in attempt(*names)) else 1
        case "record":
            return record(names)
        case "healthy":
            return healthy()
        case "without":
            return without(names)
    return 0


def make(*words: str, **knobs: str) -> subprocess.CompletedProcess[str]:
    """A command of ours, its output as one text."""
    return subprocess.run(
        words,
        cwd=REPO,
        env={**os.environ, **knobs},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def doctor(*words: str) -> tuple[list[dict[str, str]], float]:
    """The records of `make doctor`, and its seconds."""
    began = time.monotonic()
    said = subprocess.run(
        ["scripts/11_doctor.sh", *words],
        cwd=REPO,
        env={**os.environ, "JSON": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = round(time.monotonic() - began, 1)
    if not said.stdout:
        return [{"status": ALARM, "code": "?", "where": "", "seen": said.stderr}], seconds
    return json.loads(said.stdout)["checks"], seconds


def in_faults(names: Sequence[str], act: Callable[[], Any]) -> Any:
    """What `act` returns while the faults are there. Afterwards all nodes are there again."""
    with ExitStack() as stack:
        stack.callback(make, "scripts/01_up.sh")
        for name in names:
            lab = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="vr-doctor.", ignore_cleanup_errors=True))
            )
            lab.chmod(0o755)
            stack.enter_context(planted(FAULTS[name], os.environ["CLUSTER_NAME"], Path(os.environ["WORKDIR"]), lab))
        return act()


def attempt(*names: str) -> list[Record]:
    """Plants faults, runs the doctor once, and says what it found of each."""
    records, seconds = in_faults(names, doctor)
    alarms = [one for one in records if one["status"] == ALARM]
    others = sorted({one["code"] for one in alarms} - {FAULTS[name].code for name in names})
    said = []
    for name in names:
        fault = FAULTS[name]
        found = next((one for one in alarms if one["code"] == fault.code and fault.node in one["where"]), None)
        said.append(
            {
                "name": name,
                "code": fault.code,
                "found": found is not None,
                "where": found["where"] if found else "",
                "seen": found["seen"] if found else "",
                "others": others,
                "seconds": seconds,
            }
        )
        print(json.dumps(said[-1]), flush=True)
    return said


def record(names: Sequence[str]) -> int:
    """Each fault as soon as it was tried; what is not named stays as it was recorded."""
    made = machine()  # the record that this writes makes the checkout dirty
    up()
    for name in names or FAULTS:
        tried, now = {**made, **attempt(name)[0]}, recorded_so_far()
        known = {one["name"]: one for one in now["faults"]}
        known[name] = {"without": known.get(name, {}).get("without"), **tried}
        keep({**now, "faults": [known[each] for each in FAULTS if each in known]})
    return 0 if names else healthy()


def healthy() -> int:
    """Runs on healthy nodes, and seconds of `make up`'s part there."""
    up()
    runs = []
    for _ in range(HEALTHY):
        records, seconds = doctor()
        alarms = [f"{one['code']}: {one['seen']}" for one in records if one["status"] == ALARM]
        runs.append({"alarms": alarms, "seconds": seconds})
    keep({**recorded_so_far(), "healthy": runs, "gates": [doctor("--gate")[1] for _ in range(HEALTHY)]})
    return 0


def recorded_so_far() -> Record:
    """The record."""
    known: Record = json.loads(RECORD.read_text())
    return known


def keep(new: Record) -> None:
    """Write the record and the page."""
    RECORD.write_text(json.dumps(new, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(written(new), encoding="utf-8")


def up() -> None:
    """A head and two workers of a user, without Ray, on a shared root of a size that can be used up."""
    knobs = {
        "CLUSTER_NAME": "vr-doctor",
        "WORKDIR": "/tmp/vr-doctor",
        "DASHBOARD_PORT": "8349",
        "PROFILE": "cpu",
        "WORKERS": "2",
    }
    os.environ.update({key: os.environ.get(key, value) for key, value in knobs.items()})
    shared = Path(os.environ["WORKDIR"], "shared")
    if not shared.is_mount():
        shared.mkdir(parents=True, exist_ok=True)
        options = "size=600m,nr_inodes=20k,uid=1000,gid=1000,mode=755"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "vr-doctor", shared], check=True)
        os.chown(shared.parent, 1000, 1000)
    said = make("scripts/01_up.sh")
    if said.returncode:
        raise SystemExit(said.stdout)


def without(names: Sequence[str]) -> int:
    """What one sees without the doctor, of each fault and of healthy nodes; a fault whose planting fails is left out."""
    made, old = machine(), {one["name"]: one.get("without") or {} for one in recorded_so_far()["faults"]}
    up()
    if (said := suffer(TO_PREPARE, 600))["status"]:  # before there is a fault
        raise SystemExit(said["said"])
    # What has a job's record is in reliability.json.
    for name in ["", *(names or (each for each in FAULTS if "job" not in old.get(each, {})))]:
        make("scripts/02_down.sh", FORCE="1")
        up()
        try:
            saw = {**in_faults([name] if name else [], suffer), **made}
        except subprocess.CalledProcessError as error:
            print(f"{name}: it could not be planted: {error}", flush=True)
            continue
        print(name, json.dumps(saw), flush=True)
        now = recorded_so_far()
        for one in now["faults"]:
            if one["name"] == name:
                one["without"] = saw
        keep(now if name else {**now, "without": saw})
    return 0


def suffer(scripts: Mapping[str, Mapping[str, str]] = TO_TRAIN, deadline: int = DEADLINE) -> Record:
    """What these scripts say last, without the doctor's gate, and after how many seconds."""
    began = time.monotonic()
    skipped = ",".join(check.code for check in command.CHECKS)
    for script, knobs in scripts.items():
        left = str(round(began + deadline - time.monotonic()))
        words = ("timeout", "--signal=INT", "--kill-after=20", left, f"scripts/{script}.sh")
        ran = make(*words, SKIP_DOCTOR=skipped, **knobs)
        if ran.returncode:
            break
    seconds = round(time.monotonic() - began, 1)
    print(*ran.stdout.splitlines()[-12:], sep="\n", flush=True)
    return {
        "status": ran.returncode,
        "said": spoken(ran.stdout, ran.returncode),
        "seconds": seconds,
    }


def spoken(output: str, status: int) -> str:
    """What a person reads in a script's output: its first error, or what it waits for at the deadline."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if not status:
        return "nothing, a job succeeds"
    if status in (124, 137):  # of timeout(1)
        waits = [line for line in lines if line.startswith("… ")]
        return "still " + (re.sub(r", \d+ s$", "", waits[-1].removeprefix("… ")) if waits else "waiting")
    at = next((n for n, line in enumerate(lines) if line.startswith("error ")), -1)
    text = lines[at].partition(" ")[2].strip()
    if re.match(r"\d\d_\w+: exit ", text) and at > 0:  # it says only that the script has ended
        text = lines[at - 1]
    text = re.sub(r"\b(?:ppo|grpo|sft)-codeA-\w+-\w+", "the job", text).partition(": read 'make logs")[0]
    text = re.sub(r" [\^~]+(?=…)|\\x1b\[\d*m", "", text)  # a terminal's colours, and marks below a traceback's line
    return text if len(text) < LONGEST else f"{text[:LONGEST]}…"


def written(record: Record) -> str:
    """The page with its two tables."""
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in {"checks": checks(), "record": recorded(record)}.items():
        text = page.put(text, name, "\n".join(["", *lines, "", ""]))
    return text


def checks() -> Iterable[str]:
    """Each check of the table."""
    yield from ("| code | it tries to | an alarm means | cure |", "| --- | --- | --- | --- |")
    for one in command.CHECKS:
        yield f"| `{one.code}` | {one.tries} | {one.means} | {one.cure} |"


def recorded(record: Mapping[str, Any]) -> Iterable[str]:
    """What was found, and when."""
    yield from counted(record)
    if saw := record.get("without"):
        yield f"*Without the doctor* was recorded with {origin(saw)}; on healthy nodes `make up` and the job took {saw['seconds']:.0f} s there."
    yield from (
        "",
        "| planted | found as | what was seen | after | without the doctor |",
        "| --- | --- | --- | --- | --- |",
    )
    yield from map(row, record["faults"])


def counted(record: Mapping[str, Any]) -> Iterable[str]:
    """How many faults were found, how many alarms healthy nodes raised, and how long that took."""
    faults, healthy = record["faults"], record["healthy"]
    found = sum(one["found"] for one in faults)
    alarms = sum(len(one["alarms"]) for one in healthy)
    seconds = [one["seconds"] for one in healthy] or [0.0]
    gate = statistics.median(record["gates"] or [0.0])
    by_date = sorted(faults, key=lambda one: (one["written"].partition("T")[0], one["commit"], one["machine"]))
    later = [one["found"] for one in faults if one["name"] in CHOSEN_LATER]
    yield f"{found} of {len(faults)} planted faults were found by their code; {len(healthy)} runs on healthy nodes raised"
    yield f"{alarms} alarms. On a head and two workers `make doctor` took {statistics.median(seconds):.1f} s (at most {max(seconds):.1f} s), the gate"
    yield f"{gate:.1f} s. Recorded with {'; '.join(dict.fromkeys(map(origin, by_date)))}."
    yield f"Of the {len(later)} faults that were chosen by another person after the checks were done, {sum(later)} were found by their code."


def origin(record: Mapping[str, Any]) -> str:
    """With which commit, when and where this was recorded."""
    return f"commit {record['commit']} ({record['written'].partition('T')[0]}), {record['machine']}"


def row(fault: Mapping[str, Any]) -> str:
    """A fault's row of the table."""
    found = f"`{fault['code']}`" if fault["found"] else f"**not found** (`{fault['code']}`)"
    also = f" (also {', '.join(fault['others'])})" if fault["others"] else ""
    saw = f"{fault['where']}: {fault['seen'].removeprefix('error ').strip()}" if fault["found"] else "-"
    cells = (fault["name"], found + also, saw, f"{fault['seconds']} s", instead(fault.get("without")))
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def instead(saw: Mapping[str, Any] | None) -> str:
    """What one sees of a fault without the doctor."""
    if not saw:
        return "not measured"
    of_job = " (a job, in [reliability.md](../maintain/reliability.md))" if saw.get("job") else ""
    return f"{saw['seconds']:.0f} s: {saw['said'].replace('<', '&lt;')}{of_job}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2:]))
