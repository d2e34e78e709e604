# The menu: one target, one line, one script. Only this file composes phases and knows their numbers.
# Every knob of env/defaults.env can be given here: make up WORKERS=3, make submit CODE_ID=codeB WAIT=1.
# The variables from the command line, read before any of ours is set; the first part checks v itself, which the loop hides.
override given := $(if $(filter command,$(origin v)),v) $(foreach v,$(.VARIABLES),$(if $(filter command,$(origin $v)),$v))
SHELL := bash
# -p: without the functions, options and files that the environment has for shells (scripts/lib/environment.bash takes the rest).
.SHELLFLAGS := -pc
override export LC_ALL := C.UTF-8
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := help
.NOTPARALLEL: # phases follow each other, whatever -j says
override targets := help check build up doctor down prepare snapshot submit slurm export wait jobs resume retry stop debug gc logs status verify bisect acceptance report history dashboard tunnel debugger quickstart test version dist kit unkit
.PHONY: $(targets)

# Knobs from the command line reach the scripts only through the environment, byte for byte: a recipe never names a variable, and
# `value` keeps make from expanding one. (Make drops spaces in front of a value. Before 4.4 its $(shell) does not get LC_ALL from above.)
override knobs := $(shell LC_ALL=C sed -n 's/^\([A-Z][A-Z0-9_]*\)=.*/\1/p' env/defaults.env)
# Variables of make, of the shell and of the tools that we call are not checked here. HF_TOKEN is not in this list: a secret must
# not be on a command line, where the process list shows it.
override of_others := SHELL MAKE MAKEFLAGS GNUMAKEFLAGS MAKEFILES PATH HOME TMPDIR TERM LANG LC_% NO_COLOR CI CONTAINER_HOST DOCKER_% PIP_% HF_HOME HF_ENDPOINT HF_HUB_% %_proxy %_PROXY
override unknown := $(filter-out $(knobs) $(of_others),$(given))
# Knobs whose names other programs may use: what the environment has is not meant for us.
override typed := $(shell LC_ALL=C sed -n '/^#: .*, typed, for /{n; s/=.*//p; }' env/defaults.env)
unexport $(unknown) $(filter-out $(given),$(typed))
$(foreach v,$(filter-out $(unknown),$(given)),$(eval override export $$v := $$(value $$v)))
override MAKEOVERRIDES := # a make that a script calls gets them from the environment, too
override export MAKE_GIVEN := $(given)
# The first script refuses these before it does anything (scripts/lib/cli.bash).
override export MAKE_UNKNOWN_KNOBS := $(unknown)
override export MAKE_UNKNOWN_GOALS := $(filter-out $(targets),$(MAKECMDGOALS))
override export MAKE_GOALS := $(or $(MAKECMDGOALS),$(.DEFAULT_GOAL))

help: ## print this menu
	@scripts/dev/help.sh

##@ A cluster
check: ## check the machine before anything changes: engine, port, disk, memory, GPUs, image
	@scripts/00_prereq_check.sh
build: ## build the node image (skipped when its inputs are unchanged)
	@scripts/10_build_image.sh
up: check ## bring the cluster up: containers, Ray's head, Ray's workers; done when all are ALIVE [WORKERS, CLUSTER_NAME, DASHBOARD_PORT]
	@scripts/01_up.sh
	@scripts/11_doctor.sh --gate
	@scripts/12_install_py_deps.sh
	@scripts/20_start_head.sh
	@scripts/21_start_workers.sh
doctor: ## can these nodes train together? network, machines, shared root and packages, in a minute, before a job finds out [JSON=1, SKIP_DOCTOR]
	@scripts/11_doctor.sh
down: ## remove the cluster: exactly what bears its label; the shared directory stays [FORCE=1]
	@scripts/02_down.sh
dashboard: ## where Ray's dashboard is, its token's file, how to log in, and whether it answers
	@scripts/64_dashboard.sh
tunnel: ## the ssh command that forwards the dashboard to the machine in front of you
	@scripts/65_tunnel.sh
status: ## profile, nodes, jobs [JSON=1]
	@scripts/50_status.sh

##@ Jobs
prepare: ## data and model, once [DATASET_SOURCE, MODEL_SOURCE, SEED]
	@scripts/30_prepare_data_and_model.sh
snapshot: ## an immutable copy of a verl source tree [CODE_ID, VERL_SOURCE=pypi:…|git:…@…|path:…]
	@scripts/31_snapshot_verl_code.sh
submit: ## submit a job [WORKLOAD, CODE_ID, JOBSPEC, OVERRIDES, WAIT=1, DRY_RUN=1, DEBUGGER]
	@scripts/44_submit_sdk.sh
export: ## print a file that runs the same job elsewhere [TO=kuberay|dstack|compose|slurm, and what submit takes]
	@scripts/46_export.sh
slurm: ## submit a batch job to Slurm that does up, prepare, snapshot, submit (or verify, resume) and down [WORKLOAD, BATCH_*, DRY_RUN=1]
	@scripts/45_slurm.sh
wait: ## follow a job to its end [JOB=latest]
	@scripts/52_wait.sh
resume: ## continue a job from its newest complete checkpoint, as a new attempt [JOB, OVERRIDES, WAIT=1]
	@scripts/56_resume.sh
retry: ## run a job again from the first step, as a new attempt [JOB, OVERRIDES, WAIT=1]
	@scripts/57_retry.sh
stop: ## stop a job, running or waiting, and wait until it is over [JOB]
	@scripts/54_stop.sh
debug: ## a debug bundle of a job [JOB=latest, TAR=1]
	@scripts/55_debug.sh
debugger: ## the breakpoints in which a job waits, and how to attach [JOB, JSON=1]
	@scripts/66_debugger.sh
gc: ## remove old checkpoints, and snapshots that no kept job refers to [KEEP, DRY_RUN=1]
	@scripts/70_gc.sh
jobs: ## all jobs, the latest first, with the cluster up or down [JSON=1, LIMIT]
	@scripts/58_jobs.sh
logs: ## a job's driver log, or its steps, with the cluster up or down [JOB=latest, FOLLOW=1, METRICS=1]
	@scripts/51_logs.sh

##@ The question
# Its knobs, before anything is brought up for them.
.verify-check:
	@scripts/60_verify.sh --check
.bisect-check:
	@scripts/62_bisect.sh --check
.acceptance-check:
	@scripts/67_acceptance.sh --check
verify: .verify-check up prepare ## does B still train as A? one regression session and its verdict [CODE_A, CODE_B, SUITE, REPLAY, BUDGET, ALLOW, SESSION, ONLY, JSON=1]
	@scripts/60_verify.sh
bisect: .bisect-check up prepare ## which commit changed training? git bisect with real runs [VERL_REPO, GOOD, BAD, CASE, BISECT]
	@scripts/62_bisect.sh
acceptance: .acceptance-check up prepare ## does this installation keep its promises? one report, which can be sent [CODE_ID, PROFILE]
	@scripts/67_acceptance.sh
report: ## where the newest session's report.html is, and its verdict, with the cluster up or down [SESSION]
	@scripts/61_report.sh
history: ## one page over all sessions: each metric and the speed by date and code, where they changed; with the cluster up or down
	@scripts/63_history.sh

##@ Everything at once, with or without GPUs
# 10 comes before 00, which checks that the node image is there: a bare machine has none.
quickstart: export WAIT := $(if $(filter WAIT,$(given)),$(value WAIT),1)
quickstart: export PHASES_FILE := build/phases-$(shell date +%s).tsv
.quickstart-host:
	@scripts/dev/bootstrap_host.sh --engine
quickstart: .quickstart-host ## from a bare machine to a trained job on a cluster of containers: on the GPUs that no process uses, or a rehearsal [PROFILE]
	@scripts/05_choose_gpus.sh
	@scripts/10_build_image.sh
	@scripts/00_prereq_check.sh
	@scripts/01_up.sh
	@scripts/11_doctor.sh --gate
	@scripts/12_install_py_deps.sh
	@scripts/20_start_head.sh
	@scripts/21_start_workers.sh
	@scripts/30_prepare_data_and_model.sh --quickstart
	@scripts/31_snapshot_verl_code.sh
	@scripts/44_submit_sdk.sh --quickstart
	@scripts/50_status.sh
	@scripts/53_fidelity.sh
	@scripts/dev/phases.sh

##@ Without a way out
kit: ## one file with all that a machine without network needs: packages, node images, verl, data, model [KIT=cpu,gpu, CHECK=1]
	@scripts/68_kit.sh
unkit: ## install from that file alone, then quickstart, test and verify run without network [KIT=FILE, CHECK=1]
	@scripts/69_unkit.sh

##@ Development
test: ## lint, unit, contract, rules, pytest: no engine, no network once set up
	@scripts/dev/bootstrap_host.sh
	@scripts/dev/test.sh lint unit contract rules py
version: ## which version of verl-regress this is
	@maintain/version.sh
dist: ## build/dist/verl-regress-VERSION.tar.gz, which runs without git
	@maintain/dist.sh

# Empty for the first target of a make command and 1 for the others, which need not repeat messages that apply to all. Make expands
# it once for each target, for the environment of its scripts.
is_said :=
export REGRESS_SAID = $(is_said)$(eval is_said := 1)

# Any other word, even the name of a file here, is refused by a script.
.not-a-target:
	@scripts/dev/help.sh
%: .not-a-target ;
Makefile: ;
.PHONY: .not-a-target .verify-check .bisect-check .acceptance-check .quickstart-host
