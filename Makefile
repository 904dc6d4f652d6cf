# make demo  trains the code agent and shows the run; make test  runs the fast tests; make check  lints; make bench  measures.
#
#   PYTHON=python3.12   the interpreter of .venv (3.11 or 3.12; by default the first of these that works)
#   ARGS='...'          more arguments: for agentrl in demo, for pytest in test
#   WORKERS=2           processes of pytest; 0 runs the tests in one, as --pdb needs
#   TORCH_INDEX=URL     one more package index, for another build of torch

ARGS ?=
TORCH_INDEX ?=
PYTHON ?=
WORKERS ?= 2

VENV := .venv
AGENTS_VENV ?= .venv-agents
AGENTS_PINS := tests/agent_server/agents/requirements.txt
AGENTS_PROGRAMS := tests/agent_server/agents/package.json
S3_LIBS ?= .venv-s3
S3_PINS := tests/controller/s3_requirements.txt
TRACKER_LIBS ?= .venv-trackers
TRACKER_PINS := tests/metrics/tracker_requirements.txt
PIP_INSTALL := $(VENV)/bin/python -m pip install --disable-pip-version-check -c constraints-cpu.txt \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
FAST := not slow and not docker and not sglang and not vllm and not agents and not browser and not gpu and not s3 and not trackers and not wide and not tooling
WAITING := (docker or sglang or vllm or agents or s3 or trackers) and not gpu
# Of pins, so that an environment is made again where they change, and not at each clone.
sum_of = $(shell cksum < $(1) | cut -d' ' -f1)

IMPORTS_CACHE ?= .import_linter_cache

.PHONY: help demo test test-all test-computing test-waiting check bench clean python agents programs s3 trackers
.DELETE_ON_ERROR:

help:
	@echo "make demo             train the code agent, then show the run (ARGS='train.steps=10 run.dir=runs/mine' overrides settings)"
	@echo "make test             run the fast tests (ARGS='-m slow', ARGS='tests/tools -x' go to pytest)"
	@echo "make test-all         run all tests but those of a GPU: also slow ones, docker, sglang, vllm, agents, browser, s3, trackers, wide, tooling (-j2: computing and waiting ones side by side)"
	@echo "make check            ruff, mypy --strict, import-linter"
	@echo "make bench            run benchmarks/*.py, record them and rewrite docs/benchmarks.md"
	@echo "make python           make .venv alone, with nothing installed"
	@echo "make agents           make .venv-agents, the environment of the SDKs whose agents ARGS='-m agents' plays"
	@echo "make programs         add Claude Code and Codex to it, for ARGS='-m \"agents and tooling\"'"
	@echo "make s3               make .venv-s3, libraries that PYTHONPATH=.venv-s3 make test ARGS='-m s3' reads"
	@echo "make trackers         make .venv-trackers, libraries that PYTHONPATH=.venv-trackers make test ARGS='-m trackers' reads"
	@echo "make clean            delete .venv and the caches"
	@echo "WORKERS=0 runs the tests in one process (2 by default), as ARGS='--pdb' needs"
	@echo "PYTHON=python3.12 picks the interpreter, TORCH_INDEX=URL adds a package index for torch"

demo: $(VENV)/.installed
	$(VENV)/bin/agentrl train examples/code/config.yaml --then-view $(ARGS)

test: $(VENV)/.installed-test
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile -m "$(FAST)" --durations=15 $(ARGS)

# make -j2 test-all runs both lanes side by side. Either runs to its end, whatever becomes of the other.
test-all:
	@$(MAKE) --keep-going --no-print-directory test-computing test-waiting

test-computing: $(VENV)/.installed-test
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile -m "not gpu and not browser and not ($(WAITING))" $(ARGS)

# What needs an engine, a server or a page is tried in one process, since two of a kind would be in each other's way. The
# driver of pages leaves an event loop that runs, which asynchronous tests do not stand. The two sets of libraries
# conflict with the pins of .venv, so no other test sees them.
test-waiting: $(VENV)/.installed-test agents s3 trackers
	status=0; \
	$(VENV)/bin/python -m pytest -m "$(WAITING) and not s3 and not trackers" $(ARGS) || status=$$?; \
	$(VENV)/bin/python -m pytest -m "browser and not gpu" $(ARGS) || status=$$?; \
	PYTHONPATH=$(abspath $(S3_LIBS)) $(VENV)/bin/python -m pytest -m "s3 and not gpu" $(ARGS) || status=$$?; \
	PYTHONPATH=$(abspath $(TRACKER_LIBS)) $(VENV)/bin/python -m pytest -m "trackers and not gpu" $(ARGS) || status=$$?; \
	exit $$status

check: $(VENV)/.installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --cache-dir $(IMPORTS_CACHE)

bench: $(VENV)/.installed-test
	$(VENV)/bin/python -m benchmarks.report --run $(ARGS)

clean:
	rm -rf $(VENV) $(AGENTS_VENV) $(S3_LIBS) $(TRACKER_LIBS) agentrl.egg-info build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# The stamps are younger than pyproject.toml and the pins, so a second call installs nothing.
$(VENV)/.installed: pyproject.toml constraints-cpu.txt | $(VENV)/bin/python
	@echo "installing agentrl into $(VENV), once"
	@$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints-cpu.txt | $(VENV)/bin/python
	@echo "installing agentrl and what its tests need into $(VENV), once"
	@$(PIP_INSTALL) -e '.[test]'
	@touch $(VENV)/.installed $@

# The tests of `make test ARGS='-m agents'` look for it there, or in AGENTRL_AGENTS_PYTHON.
agents: $(AGENTS_VENV)/.installed-$(call sum_of,$(AGENTS_PINS))

$(AGENTS_VENV)/.installed-%: | $(VENV)/bin/python
	$(VENV)/bin/python -m venv $(AGENTS_VENV)
	$(AGENTS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $(AGENTS_PINS)
	@touch $@

# Claude Code and Codex, 808 MB by npm: for the two tests of them, which `make test-all` runs.
programs: $(AGENTS_VENV)/.programs-$(call sum_of,$(AGENTS_PROGRAMS))

$(AGENTS_VENV)/.programs-%: | agents
	cp $(AGENTS_PROGRAMS) $(AGENTS_VENV)
	npm install --prefix $(AGENTS_VENV) --silent --no-audit --no-fund --ignore-scripts
	node $(AGENTS_VENV)/node_modules/@anthropic-ai/claude-code/install.cjs
	@touch $@

# Libraries alone, beside those of .venv: an AWS SDK and a server that stands for S3, which no other test needs.
s3: $(S3_LIBS)/.installed-$(call sum_of,$(S3_PINS))

$(S3_LIBS)/.installed-%: | $(VENV)/bin/python
	rm -rf $(S3_LIBS)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(S3_LIBS) -r $(S3_PINS)
	@touch $@

# W&B, trackio, MLflow, Prometheus' client and OpenTelemetry: trackio wants another Pillow than .venv has.
trackers: $(TRACKER_LIBS)/.installed-$(call sum_of,$(TRACKER_PINS))

$(TRACKER_LIBS)/.installed-%: | $(VENV)/bin/python
	rm -rf $(TRACKER_LIBS)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(TRACKER_LIBS) -r $(TRACKER_PINS)
	@touch $@

python: $(VENV)/bin/python

$(VENV)/bin/python:
	@echo "making $(VENV)"
	@for python in $(if $(PYTHON),$(PYTHON),python3 python3.12 python3.11); do \
		$$python -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null \
			&& exec $$python -m venv $(VENV); \
	done; \
	echo "agentrl needs Python 3.11 or 3.12 with venv$(if $(PYTHON), (PYTHON=$(PYTHON) is not that)): install one" \
		"(Debian and Ubuntu: apt install python3.12-venv; macOS: brew install python@3.12)" \
		"or name it: make PYTHON=/path/to/python3.12" >&2; exit 1
